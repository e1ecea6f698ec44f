"""torch.jit.trace: records what the module does to a whole batch, on every rank alike."""

from __future__ import annotations

from typing import Any

from ..batch.forms import whole_of
from ..batch.tensor import BatchTensor
from ..patcher import Patch
from ..replica.replicas import Replicas
from ..structure import map_leaves


def patches(replicas: Replicas) -> list[Patch]:
    """Rows for ``torch.jit``."""

    def trace(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = map_leaves(_whole, (args, kwargs))
        with replicas.back_inside(True, False):
            return wrapped(*args, **kwargs)

    effect = "traces whole batches"
    return [
        Patch("torch.jit._trace", "trace", trace, effect, also=("torch.jit:trace",), everywhere=True),
        Patch("torch.jit._trace", "trace_module", trace, effect, also=("torch.jit:trace_module",), everywhere=True),
    ]


def _whole(leaf: Any) -> Any:
    return whole_of(leaf).detach() if isinstance(leaf, BatchTensor) else leaf
