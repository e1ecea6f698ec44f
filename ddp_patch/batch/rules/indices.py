"""What an index picks: ``x[...]``, item by item."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..crossings import shard
from ..factories import counts
from ..forms import to_local
from ..layout import Layout
from ..names import as_int
from ..tensor import BatchTensor

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)


def of_each_row(batch: BatchTensor, items: tuple[Any, ...]) -> tuple[tuple[Any, ...], Layout] | None:
    """``x[torch.arange(B)[:, None], i]``: what picks of this rank's rows, and how what it picks is dealt; or None.

    Rows that are not along the first dimension come after numbers and indices alone: ``x[t, torch.arange(B), i]``.
    """
    layout = batch._layout
    at = layout.dim
    numbers: Any = items[at] if at < len(items) else None
    if len(items) < 2 or not counts(_column(numbers, layout.total), layout.total):
        return None
    back = 1 if isinstance(numbers, range) else numbers.dim()  # from the last dimension of the indices
    local: list[Any] = []
    dims = back
    for place, item in enumerate(items):
        if place == at:
            continue
        if isinstance(item, Tensor):
            if item.dtype != torch.long:
                return None
            dims = max(dims, item.dim())
            its = _local_indices(item, layout, back)
            if its is None:
                return None
            local.append(its)
        elif isinstance(item, int if place < at else (int, slice)) and not isinstance(item, bool):
            local.append(item)
        else:
            return None
    rows = to_local(batch)
    count = torch.arange(rows.shape[at], device=rows.device).reshape(-1, *[1] * (back - 1))
    local.insert(at, count if back == 1 else count.expand(-1, *numbers.shape[1:]))
    return tuple(local), layout.at(dims - back)


def _column(item: Any, total: int) -> Any:
    """Of an expanded or repeated tensor, as ``torch.meshgrid`` and PointNet++ have them, what was repeated."""
    if not isinstance(item, Tensor) or isinstance(item, BatchTensor) or item.dim() < 2 or item.numel() == total:
        return item
    if len(item) != total:
        return item
    column = item.flatten(1)[:, 0]
    is_expanded = not any(item.stride()[1:])
    is_repeated = is_expanded or bool((item == column.reshape(-1, *[1] * (item.dim() - 1))).all())
    return column if is_repeated else item


def _local_indices(item: Tensor, layout: Layout, back: int) -> Tensor | None:
    at = item.dim() - back
    if isinstance(item, BatchTensor):
        return to_local(item) if item._layout == layout.at(at) else None
    if at < 0 or item.shape[at] == 1:
        return item
    return shard(item, layout.at(at)) if item.shape[at] == layout.total else None


def scalar(item: Any) -> Any:
    """Write a number of NumPy's, or in a tensor, as one of Python's, as which torch takes it."""
    if isinstance(item, Tensor):
        is_number = item.dim() == 0 and item.dtype in _INTEGERS and not isinstance(item, BatchTensor)
        return int(item) if is_number else item
    return as_int(item)


def moved_by(batch: BatchTensor, items: list[Any]) -> int | None:
    """Where index tensors along other dimensions leave that of the rows, seen on a tensor without memory."""
    shape, sizes = [*batch.shape], [size for item in items if isinstance(item, Tensor) for size in item.shape]
    mark = shape[batch._layout.dim] = 1 + sum(shape) + sum(sizes)
    index = [torch.empty_like(item, device="meta") if isinstance(item, Tensor) else item for item in items]
    places = [dim for dim, size in enumerate(torch.empty(shape, device="meta")[tuple(index)].shape) if size == mark]
    return places[0] if len(places) == 1 else None


def index_dims(item: Any) -> int | None:
    """Dimensions of an integer index; None for masks and anything unclear."""
    if isinstance(item, Tensor):
        return None if item.dtype in (torch.bool, torch.uint8) or item.dim() == 0 else item.dim()
    if isinstance(item, (list, range)) and all(type(i) is int for i in item):
        return 1
    if hasattr(item, "dtype") and hasattr(item, "ndim") and item.dtype.kind in "iu" and item.ndim > 0:  # numpy
        return int(item.ndim)
    return None


def without_ellipsis(items: tuple[Any, ...], dims: int) -> list[Any] | None:
    """Write out what ``...`` stands for; None where that is unclear."""
    used = sum(item is not None and item is not Ellipsis for item in items)
    if sum(item is Ellipsis for item in items) > 1 or used > dims:
        return None
    if not any(item is Ellipsis for item in items):
        return list(items)
    at = next(i for i, item in enumerate(items) if item is Ellipsis)
    return [*items[:at], *[slice(None)] * (dims - used), *items[at + 1 :]]
