"""Entries of a table that every rank has whole, one for each index of a batch, as in ``betas[t]``."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from ..crossings import replicate, shard
from ..forms import to_local
from ..layout import Layout
from ..tensor import BatchTensor

_MASKS = (torch.bool, torch.uint8)


def at_indices(func: Any, table: Any, index: Any) -> Any:
    """``table[t]``, ``table[t, None]``, ``table[t, labels]``: what is picked stands where its indices do."""
    items = index if isinstance(index, tuple) else (index,)
    picking = list(itertools.takewhile(_picks, items))
    batches = [item for item in picking if isinstance(item, BatchTensor)]
    if not batches or not isinstance(table, Tensor) or not all(map(_keeps_place, items[len(picking) :])):
        return NotImplemented
    layout, dims = batches[0]._layout, batches[0].dim()
    if any(other._layout != layout or other.dim() != dims for other in batches[1:]):
        return NotImplemented
    local = tuple(to_local(item) if isinstance(item, BatchTensor) else item for item in items)
    return _looked_up(func, table, local if isinstance(index, tuple) else local[0], layout=layout)


def gathered(func: Any, table: Any, dim: int, index: Any) -> Any:
    """``table.gather(-1, t)``: along the other dimensions, an index looks only where it stands itself."""
    if not _is_lookup(table, index):
        return NotImplemented
    layout = index._layout
    if dim % index.dim() != layout.dim:  # a table for each row
        if table.dim() != index.dim() or table.shape[layout.dim] != layout.total:
            return NotImplemented
        return BatchTensor.from_local(func(shard(table, layout), dim, to_local(index)), layout)
    return _looked_up(func, table, dim, to_local(index), layout=index._layout)


def selected(func: Any, table: Any, dim: Any, index: Any) -> Any:
    """``table.index_select(0, t)``."""
    if not _is_lookup(table, index) or type(dim) is not int or table.dim() == 0 or index.dim() != 1:
        return NotImplemented
    return _looked_up(func, table, dim, to_local(index), layout=index._layout.at(dim % table.dim()))


def take(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.take(table, t)``, of all entries of the table in a row."""
    if len(args) != 2 or kwargs or not _is_lookup(*args):
        return NotImplemented
    return _looked_up(func, args[0], to_local(args[1]), layout=args[1]._layout)


def _is_lookup(table: Any, index: Any) -> bool:
    if not isinstance(index, BatchTensor) or not isinstance(table, Tensor) or isinstance(table, BatchTensor):
        return False
    return table.layout is torch.strided  # rows of a sparse one would be sparse


def _picks(item: Any) -> bool:
    """Tell indices that are broadcast with each other."""
    return item.dtype not in _MASKS if isinstance(item, BatchTensor) else type(item) is int


def _keeps_place(item: Any) -> bool:
    return item is None or item is Ellipsis or (isinstance(item, slice) and item == slice(None))


def _looked_up(func: Any, table: Tensor, *args: Any, layout: Layout) -> BatchTensor:
    return BatchTensor.from_local(func(replicate(table), *args), layout)
