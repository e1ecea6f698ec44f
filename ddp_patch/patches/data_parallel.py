"""nn.DataParallel: the same class and the same objects, with DDP doing the work."""

from __future__ import annotations

import weakref
from typing import Any

from torch import nn

from ..launch.job import Job
from ..patcher import Patch
from ..replica.replicas import Replicas


def patches(replicas: Replicas, job: Job) -> list[Patch]:
    """Rows for ``nn.DataParallel``."""
    dims: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()

    def init(wrapped: Any, instance: nn.DataParallel[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        def build(module: Any, device_ids: Any = None, output_device: Any = None, dim: int = 0) -> None:
            dims[instance] = dim  # a host without accelerator returns before setting self.dim
            if job.device.type == "cpu":
                wrapped(module, device_ids, output_device, dim)
            else:
                wrapped(module, [job.device], job.device, dim)

        replicas.discovering = False  # the script says itself what to distribute
        build(*args, **kwargs)

    def forward(wrapped: Any, instance: nn.DataParallel[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if replicas.inside:
            return wrapped(*args, **kwargs)
        module = instance.module
        replica = replicas.replica_of(module) or replicas.make(module, "wrapped in nn.DataParallel by the script")
        vector = bool(instance.device_ids)  # on a host without accelerator DataParallel passes through
        return replicas.call(replica, module, args, kwargs, dims.get(instance, 0), vector)

    return [
        Patch("torch.nn.parallel.data_parallel", "DataParallel.__init__", init, "binds to this rank's device"),
        Patch("torch.nn.parallel.data_parallel", "DataParallel.forward", forward, "runs on this rank's rows under DDP"),
    ]
