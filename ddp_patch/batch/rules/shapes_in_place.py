"""Functions that give a tensor other sizes, where it stands."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..forms import is_whole_shared, mark_in_sync, to_local
from ..names import as_rules_have_them
from ..tensor import RULES, BatchTensor, Rule
from ..world import World


def in_place(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.unsqueeze_(1)``: the same batch, of other sizes."""
    batch = args[0]
    if not isinstance(batch, BatchTensor) or is_whole_shared(batch):
        return NotImplemented
    rows = to_local(batch)
    if rows.requires_grad and rows.is_leaf and torch.is_grad_enabled():
        return func(rows, *args[1:], **kwargs)  # raises
    other = getattr(Tensor, func.__name__.removesuffix("_"))
    rule = RULES[other]
    view = rule(other, *as_rules_have_them(rule, other, args, kwargs))
    if view is NotImplemented:
        return NotImplemented
    if (seen := World.get().observation) is not None:
        seen.note_resize(batch)
    _become(batch, view)
    return batch


def _become(batch: BatchTensor, other: BatchTensor) -> None:
    """Give a batch the sizes of a view of it, as ``x.unsqueeze_(1)`` does."""
    with torch._C.DisableTorchFunctionSubclass():
        batch.data = other  # its sizes; there is no memory
    take_forms(batch, other)


def take_forms(batch: BatchTensor, other: BatchTensor) -> None:
    """Give a batch the rows of another of the same sizes."""
    batch._rows, batch._layout, batch._whole, batch._whole_copy = other._rows, other._layout, None, None
    batch._lies_as_whole = batch._is_whole_source = False
    mark_in_sync(batch)


def rules() -> list[tuple[Any, Rule]]:
    """Methods that end with an underscore."""
    names = ("squeeze_", "unsqueeze_", "transpose_", "swapaxes_", "swapdims_", "t_")
    return [(getattr(Tensor, name), in_place) for name in names]
