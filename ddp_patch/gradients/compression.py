"""The option ``comm_hook``: gradients travel in fewer bytes, by the hooks that torch ships and two of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from .error_feedback import ErrorFeedback


def compress(
    name: str | None, ddp: DistributedDataParallel, leaves: Callable[[bool], None], powersgd_after: int | None = None
) -> None:
    """Have DDP send its buckets in another form; None to send them as they are.

    The numbers are then no longer those of one process: that is what was asked for. Gradients averaged outside DDP's
    pass (see ``gradients``) travel as they are.

    Args:
        name: of the form.
        ddp: that sends them.
        leaves: is told of each, and whether it is the last one.
        powersgd_after: so many iterations; None for torch's default.
    """
    group: Any = ddp.process_group
    # gloo's collectives end, and begin what follows upon them, in threads of its own: those of several buckets would
    # meet in another order on each rank. NCCL's are put into a stream by the thread of the backward (torch 2.13).
    devices = {parameter.device.type for parameter in ddp.parameters()}
    backends = dist.get_backend_config(group).split(",")
    waits = not all(f"{kind}:nccl" in backends for kind in devices)
    hook = _hook(name, group, waits, powersgd_after)

    def reporting_hook(_: Any, bucket: Any) -> Any:
        leaves(bucket.is_last())
        sent = hook(bucket)
        if waits and name == "powersgd":
            sent.wait()
        return sent

    # A lambda, since DDP compares the annotations of a hook with its own classes, not with their names.
    ddp.register_comm_hook(None, lambda state, bucket: reporting_hook(state, bucket))


_DTYPES = {"fp16_ef": torch.float16, "bf16_ef": torch.bfloat16}


def _hook(name: str | None, group: Any, waits: bool, powersgd_after: int | None) -> Callable[[Any], Any]:
    if name == "powersgd":
        # Vogels et al. 2019; torch's defaults: rank 1, vanilla all-reduce for the first 1,000 iterations.
        after: dict[str, Any] = {} if powersgd_after is None else {"start_powerSGD_iter": powersgd_after}
        state = powerSGD_hook.PowerSGDState(group, **after)
        return lambda bucket: powerSGD_hook.powerSGD_hook(state, bucket)
    if name in _DTYPES:
        return ErrorFeedback(_DTYPES[name], group, waits).send
    plain: Any = {
        "fp16": default_hooks.fp16_compress_hook,
        "bf16": default_hooks.bf16_compress_hook,
        None: default_hooks.allreduce_hook,
    }[name]
    return lambda bucket: plain(group, bucket)
