"""torch.autograd: note when a backward ended, and guard the door that would lose a batch's gradient."""

from __future__ import annotations

from typing import Any

from ..batch.tensor import BatchTensor, whole_of
from ..batch.world import World
from ..patcher import Patch
from ..replica.replicas import Replicas


def patches(replicas: Replicas, world: World) -> list[Patch]:
    """Rows for ``torch.autograd``."""

    def backward(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        wrapped(*args, **kwargs)
        replicas.after_backward()

    def apply(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Below torch functions a batch has no graph: a Function would compute on the wrapper and drop the gradient.
        if not any(isinstance(arg, BatchTensor) for arg in args):
            return wrapped(*args, **kwargs)
        before = world.ledger.collective_bytes["all_gather"]
        args = tuple(whole_of(arg) if isinstance(arg, BatchTensor) else arg for arg in args)
        world.ledger.gathered(f"{instance.__name__}.apply", 1, world.ledger.collective_bytes["all_gather"] - before)
        return wrapped(*args, **kwargs)

    return [
        Patch("torch.autograd", "backward", backward, "notes whether gradients are global"),
        Patch("torch.autograd.function", "Function.apply", apply, "gets the whole batch"),
    ]
