"""Entries that are picked along a dimension by their numbers: ``x.gather(1, index)``, ``x.index_select(0, index)``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..crossings import shard
from ..forms import to_local
from ..tensor import BatchTensor, Rule
from . import lookups, picked_rows, sorted_rows
from .indexing import along_dim


def gather(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``logits.gather(1, labels[:, None])``: local if every row has an index, or several."""
    arguments = [*args, *(kwargs[name] for name in ("dim", "index")[len(args) - 1 :] if name in kwargs)]
    if len(arguments) != 3 or len(arguments) != len(args) + len(kwargs) or type(arguments[1]) is not int:
        return NotImplemented
    batch, dim, index = arguments
    if not isinstance(batch, BatchTensor):
        return lookups.gathered(func, batch, dim, index)
    if dim % batch.dim() == batch._layout.dim:
        return _gathered_rows(func, batch, dim % batch.dim(), index)
    if not isinstance(index, Tensor) or index.dim() != batch.dim():
        return NotImplemented
    if index.shape[batch._layout.dim] != batch._layout.total:
        return NotImplemented
    if isinstance(index, BatchTensor) and index._layout != batch._layout:
        return NotImplemented
    local_index = to_local(index) if isinstance(index, BatchTensor) else shard(index, batch._layout)
    return BatchTensor.from_local(func(to_local(batch), dim, local_index), batch._layout)


def _gathered_rows(func: Any, batch: BatchTensor, dim: int, index: Any) -> Any:
    """``x.gather(0, at)``, with numbers of which each rank's are its own rows'."""
    if batch.dim() == 1 and (own := sorted_rows.picked(batch, index)) is not None:
        return own
    if not isinstance(index, BatchTensor) or index.dim() != batch.dim() or index._layout.dim != dim:
        return NotImplemented
    rows = picked_rows.local_rows(batch, dim, index, from_end=False)
    return NotImplemented if rows is None else BatchTensor.from_local(func(to_local(batch), dim, rows), index._layout)


_selected_along = along_dim(1, None, False)


def index_select(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.index_select(1, columns)`` of a batch, ``table.index_select(0, x)`` by one."""
    if len(args) == 3 and not kwargs and not isinstance(args[0], BatchTensor):
        return lookups.selected(func, *args)
    if len(args) == 3 and args[1] == 0 and isinstance(args[2], BatchTensor) and args[2].dim() == 1:
        own = picked_rows.picked_by_batch(args[0], args[2:], func)
        return NotImplemented if own is None else own
    if len(args) == 3 and args[1] == 0 and (own := sorted_rows.picked(args[0], args[2])) is not None:
        return own
    return _selected_along(func, args, kwargs)


def rules() -> list[tuple[Any, Rule]]:
    """Functions that pick along a dimension."""
    return [
        *((f, index_select) for f in (torch.index_select, Tensor.index_select)),
        *((f, gather) for f in (torch.gather, Tensor.gather)),
        *((f, lookups.take) for f in (torch.take, Tensor.take)),
    ]
