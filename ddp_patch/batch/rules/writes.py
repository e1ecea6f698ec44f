"""Entries of rows that are written to: ``x[:, i] = v``, ``labels[labels == 0] = -100``, ``x.scatter(1, i, v)``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...structure import map_leaves
from ..crossings import shard
from ..forms import forget_whole, is_whole_shared, to_local
from ..names import writes_in_place
from ..tensor import BatchTensor, Rule
from ..versions import note_write
from ..world import World
from . import masked_rows, picked_rows, sorted_rows
from .elementwise import common_layout, cutter, to_local_form
from .indexing import getitem
from .indices import index_dims, of_each_row, scalar, without_ellipsis
from .listed_entries import note_told_rows


def setitem(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Local where the index leaves the batch dimension alone, or is a mask that is dealt as the batch is."""
    batch, index, value = args
    if not isinstance(batch, BatchTensor) or is_whole_shared(batch):
        return NotImplemented
    if not isinstance(value, Tensor) and type(value) not in (int, float, bool, complex):
        return NotImplemented  # an array has a row for each of the whole's
    local_index: Any
    items = index if isinstance(index, tuple) else (index,)
    if len(items) == 1 and isinstance(value, BatchTensor) and value.dim() == batch.dim() and batch._layout.dim == 0:
        items = (_as_batch(items[0], value),)
    if len(items) == 1 and sorted_rows.reordered(batch, items[0], value):
        return None
    if len(items) == 1 and (by_mask := masked_rows.written(batch, items[0], value)) is not None:
        local_index, local_value = by_mask
    elif (at_batch := picked_rows.written_by_batch(batch, items, value)) is not None:
        local_index, local_value = at_batch
    else:
        items = masked_rows.spelled_out(items, batch.dim(), batch._layout.dim)
        of_rows = of_each_row(batch, items)
        local_index, local_value = of_rows[0] if of_rows is not None else _local_index(batch, items, value), value
        if local_index is None:
            expanded = without_ellipsis(tuple(map(scalar, items)), batch.dim())
            own = None if expanded is None else picked_rows.written(batch, expanded, value)
            if own is None:
                return NotImplemented
            local_index, local_value = own
        elif isinstance(value, Tensor):
            target = getitem(Tensor.__getitem__, (batch, index), {})
            while value.dim() > target.dim() and value.shape[0] == 1:  # as torch takes it
                value = value.squeeze(0)
            layout = common_layout([target, value]) if isinstance(target, BatchTensor) else None
            if layout is None or layout != target._layout or value.dim() > target.dim():
                return NotImplemented
            local_value = cutter(layout, target.dim())(value)
    rows = to_local(batch)
    func(rows, local_index, local_value)
    note_write(rows)
    forget_whole(batch)
    return None


def _local_index(batch: BatchTensor, index: tuple[Any, ...], value: Any) -> tuple[Any, ...] | None:
    items = without_ellipsis(tuple(map(scalar, index)), batch.dim())
    if items is None or not all(_is_plain(item) for item in items):
        return None
    dealt = [place for place, item in enumerate(items) if item is not None][batch._layout.dim :][:1]
    if dealt and not _is_everything(items[dealt[0]]):
        advanced = not all(item is None or type(item) in (int, slice) for item in items)
        part = None if advanced or isinstance(value, Tensor) else _local_slice(batch, items[dealt[0]])
        if part is None:
            return None
        items[dealt[0]] = part
    return tuple(items)


def _is_plain(item: Any) -> bool:
    """Tell what leaves the batch dimension where it is: not a batch, nor a mask."""
    if item is None or type(item) in (int, slice):
        return True
    return not isinstance(item, BatchTensor) and index_dims(item) is not None


def _is_everything(item: Any) -> bool:
    return isinstance(item, slice) and item == slice(None)


def _local_slice(batch: BatchTensor, item: Any) -> slice | None:
    """Of a row, or of several side by side, those of this rank. One that has none writes to none, and counts it."""
    total, world = batch._layout.total, World.get()
    if batch._whole is not None or world.observation is not None:  # which has to see that rows are told apart
        return None
    if type(item) is int and -total <= item < total:
        edges = item % total, item % total + 1
    elif isinstance(item, slice) and all(part is None or type(part) is int for part in (item.start, item.stop)):
        if item.step not in (None, 1):
            return None
        edges = item.indices(total)[:2]
    else:
        return None
    return slice(*map(batch._layout.rows(world.rank).before, edges))


def scatter(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.scatter(1, labels[:, None], 1.0)``, ``scatter_add`` and their like: local if all are dealt alike."""
    batch, dim = args[0] if args else None, args[1] if len(args) > 1 else kwargs.get("dim")
    if not isinstance(batch, BatchTensor) or type(dim) is not int or kwargs.get("out") is not None:
        return NotImplemented
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    if dim % batch.dim() == batch._layout.dim or any(getattr(t, "_layout", None) != batch._layout for t in tensors):
        return NotImplemented
    return _written(func, batch, args, kwargs)


def at_indices(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.index_add(1, columns, y)``, ``index_copy``, ``index_fill`` and their like: local if ``y`` is dealt alike.

    Along the rows, it is local if the numbers of rows are a batch, and each rank's are of its own.
    """
    given = dict(zip(("input", "dim", "index", "source"), args, strict=False)) | kwargs
    batch, dim, index, source = given.get("input"), given.get("dim"), given.get("index"), given.get("source", 0)
    source = given.get("value", source)
    if not isinstance(batch, BatchTensor) or type(dim) is not int or kwargs.get("out") is not None:
        return NotImplemented
    dim, layout, local = dim % batch.dim(), batch._layout, index
    if dim == layout.dim:
        numbers = _as_batch(index, source, dim)
        if not isinstance(numbers, BatchTensor) or numbers.dim() != 1:
            return NotImplemented
        local, layout = picked_rows.local_rows(batch, dim, numbers, from_end=False), numbers._layout.at(dim)
    if not isinstance(local, Tensor) or isinstance(local, BatchTensor):
        return NotImplemented
    if isinstance(source, Tensor) and source.dim() > 0 and getattr(source, "_layout", None) != layout:
        return NotImplemented
    if dim == batch._layout.dim:
        note_told_rows()
    args, kwargs = map_leaves(lambda value: local if value is index else value, (args, kwargs))
    return _written(func, batch, args, kwargs)


def _as_batch(index: Any, source: Any, dim: int = 0) -> Any:
    """Deal numbers of rows as what is to be written at them."""
    if isinstance(index, BatchTensor) or not isinstance(index, Tensor) or not isinstance(source, BatchTensor):
        return index
    layout = source._layout
    if index.shape != (layout.total,) or index.dtype != torch.long or layout.dim != dim:
        return index
    return BatchTensor.from_local(shard(index, layout.at(0)), layout.at(0))


def _written(func: Any, batch: BatchTensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    writes = writes_in_place(func, kwargs)
    if writes and is_whole_shared(batch):
        return NotImplemented
    rows = func(*map(to_local_form, args), **{name: to_local_form(value) for name, value in kwargs.items()})
    if not writes:
        return BatchTensor.from_local(rows, batch._layout)
    forget_whole(batch)
    return batch


def rules() -> list[tuple[Any, Rule]]:
    """Functions that write to entries."""
    return [
        (Tensor.__setitem__, setitem),
        *((f, scatter) for f in (torch.scatter, Tensor.scatter, torch.scatter_add, Tensor.scatter_add)),
        *((f, scatter) for f in (torch.scatter_reduce, Tensor.scatter_reduce)),
        *((f, scatter) for f in (Tensor.scatter_, Tensor.scatter_add_, Tensor.scatter_reduce_)),
        *((f, at_indices) for f in (torch.index_add, torch.index_copy, torch.index_fill, torch.index_reduce)),
        *((f, at_indices) for f in (Tensor.index_add, Tensor.index_copy, Tensor.index_fill, Tensor.index_reduce)),
        *((f, at_indices) for f in (Tensor.index_add_, Tensor.index_copy_, Tensor.index_fill_, Tensor.index_reduce_)),
    ]
