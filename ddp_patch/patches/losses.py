"""torch.nn.functional.l1_loss: torch 2.13 keeps its weight from overrides of tensor functions, so it is seen here."""

from __future__ import annotations

from typing import Any

from ..batch.tensor import BatchTensor, on_whole
from ..patcher import Patch


def patches() -> list[Patch]:
    """Rows for ``F.l1_loss``."""

    def l1_loss(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        weight = args[5] if len(args) > 5 else kwargs.get("weight")
        if weight is None or not any(isinstance(value, BatchTensor) for value in (*args, *kwargs.values())):
            return wrapped(*args, **kwargs)
        return on_whole(wrapped, args, kwargs)  # a weighted mean divides by the weights of all rows

    return [Patch("torch.nn.functional", "l1_loss", l1_loss, "its weight sees the whole batch")]
