"""torch.autograd: note when a backward ended, and guard the door that would lose a batch's gradient."""

from __future__ import annotations

from typing import Any

from ..batch.tensor import BatchTensor, whole_of
from ..batch.world import World
from ..errors import BatchError
from ..patcher import Patch
from ..replica.replicas import Replicas
from ..structure import leaves, map_leaves


def patches(replicas: Replicas, world: World) -> list[Patch]:
    """Rows for ``torch.autograd``."""

    def backward(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        wrapped(*args, **kwargs)
        replicas.after_backward()

    def apply(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Below torch functions a batch has no graph: a Function would compute on the wrapper and drop the gradient.
        before = world.ledger.collectives["all_gather"], world.ledger.collective_bytes["all_gather"]
        whole = map_leaves(lambda leaf: whole_of(leaf) if isinstance(leaf, BatchTensor) else leaf, args)
        if whole is not args:
            calls = world.ledger.collectives["all_gather"] - before[0]
            size = world.ledger.collective_bytes["all_gather"] - before[1]
            world.ledger.gathered(f"{instance.__name__}.apply", calls, size)
        result = wrapped(*whole, **kwargs)
        if any(isinstance(leaf, BatchTensor) for _, leaf in leaves(result)):
            raise BatchError(
                f"{instance.__name__}.forward returned a batch that it did not get as an argument, so the gradient of "
                f"that batch would be lost. Pass it: {instance.__name__}.apply(..., batch)."
            )
        return result

    return [
        Patch("torch.autograd", "backward", backward, "notes whether gradients are global"),
        Patch("torch.autograd.function", "Function.apply", apply, "gets the whole batch"),
    ]
