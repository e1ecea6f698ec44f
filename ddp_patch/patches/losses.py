"""torch.nn.functional's losses: those that a forward computes on rows are the whole batch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..batch.reductions import reduced
from ..batch.rules.losses import LOSSES
from ..batch.tensor import BatchTensor, on_whole
from ..batch.world import World
from ..patcher import Patch


def patches(world: World) -> list[Patch]:
    """Rows for the losses of ``torch.nn.functional``."""

    def loss(name: str) -> Callable[..., Any]:
        return lambda wrapped, instance, args, kwargs: reduced(world, name, wrapped, args, kwargs)

    def l1_loss(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # torch 2.13 keeps its weight from overrides of tensor functions, so it is seen here.
        weight = args[5] if len(args) > 5 else kwargs.get("weight")
        if weight is not None and any(isinstance(value, BatchTensor) for value in (*args, *kwargs.values())):
            return on_whole(wrapped, args, kwargs)  # a weighted mean divides by the weights of all rows
        return loss("l1_loss")(wrapped, instance, args, kwargs)

    where, inside = "torch.nn.functional", "inside a forward it is that of all rows"
    names = [function.__name__ for function in LOSSES if function.__name__ != "l1_loss"]
    return [
        Patch(where, "l1_loss", l1_loss, f"its weight sees the whole batch; {inside}"),
        *(Patch(where, name, loss(name), inside, everywhere=True) for name in names),
    ]
