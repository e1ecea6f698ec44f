"""torch.nn.functional's losses: those that a forward computes on rows are the whole batch's."""

from __future__ import annotations

from typing import Any

from ..batch.noted_reductions import reduced
from ..batch.rules.losses import LOSSES
from ..batch.tensor import BatchTensor, on_whole
from ..patch import Args, Kwargs, Patch, Wrapper
from ..session import Session
from .below_modes import below_modes


def _loss(name: str) -> Wrapper:
    return lambda session, wrapped, instance, args, kwargs: reduced(session.world, name, wrapped, args, kwargs)


def _l1_loss(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    # torch 2.13 keeps its weight from overrides of tensor functions, so it is seen here.
    weight = args[5] if len(args) > 5 else kwargs.get("weight")
    if weight is not None and any(isinstance(value, BatchTensor) for value in (*args, *kwargs.values())):
        return on_whole(wrapped, args, kwargs)  # a weighted mean divides by the weights of all rows
    return reduced(session.world, "l1_loss", wrapped, args, kwargs)


_WHERE, _INSIDE = "torch.nn.functional", "of all rows, where a model computes its loss while it computes its own"
_NAMES = [function.__name__ for function in LOSSES if function.__name__ != "l1_loss"]

PATCHES = (
    Patch(_WHERE, "l1_loss", below_modes(_l1_loss), f"{_INSIDE}; its weight sees the whole batch"),
    *(Patch(_WHERE, name, below_modes(_loss(name)), _INSIDE) for name in _NAMES),
)
