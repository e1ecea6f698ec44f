"""Rows picked by their numbers: each rank picks of its own.

``x[b, i, j]`` with plain indices, which ranks hold alike: what they picked is added up. Detectors pick predictions by
the number of the picture, the anchor and the cell; all predictions would travel otherwise.

``x.view(B * N, -1)[neighbours]`` with indices that are dealt themselves: of a point cloud, those of its own points, so
that each rank's are among its rows. What is picked is dealt as the indices are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..crossings import all_reduce
from ..forms import full_tensor, to_local
from ..layout import Layout
from ..tensor import BatchTensor
from ..world import World
from . import lookups
from .elementwise import broadcast_dims, common_layout, cutter
from .listed_entries import lists_own_rows, note_told_rows

_ADDED = (  # by every backend: gloo has no sums of int16, say
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128, torch.complex64),
    *(torch.int64, torch.int32, torch.int8, torch.uint8),
)
_PLAIN = (int, slice, type(...))


@dataclass(frozen=True)
class _Pick:
    """What an index picks, of all rows and of this rank's."""

    shape: torch.Size  # of what is picked
    dims: int  # of the indices, which come first in it
    rows: Tensor  # indices of rows, counted from this rank's first
    is_own: Tensor  # for each, whether this rank has it
    items: Sequence[Any]  # for the other dimensions


def picked(batch: BatchTensor, items: Sequence[Any]) -> Tensor | None:
    """Give the entries at an index; None if it is another kind of index, or picks so much that rows may as well travel.

    Args:
        batch: with its rows along the first dimension.
        items: of the index.

    Raises:
        IndexError: torch's own.
    """
    if batch._whole is not None or batch.dtype not in _ADDED or not _may_be(batch, items):
        return None
    pick = _pick(batch, items)
    if 2 * math.prod(pick.shape) > batch.numel():
        return None
    local = to_local(batch)
    found = local[(pick.rows.clamp(0, len(local) - 1), *pick.items)]
    is_own = pick.is_own.expand(pick.shape[: pick.dims]).reshape(
        *pick.shape[: pick.dims], *[1] * (found.dim() - pick.dims)
    )
    # A sum with -0 is what it was, a zero's sign too.
    nothing = local.new_full((), -0.0 if found.is_floating_point() or found.is_complex() else 0)
    return all_reduce(torch.where(is_own, found, nothing), node="IndexBackward0")


def written(batch: BatchTensor, items: Sequence[Any], value: Any) -> tuple[tuple[Any, ...], Any] | None:
    """Give what is to be written to this rank's rows: an index, and values; None if it is another kind of index.

    Args:
        batch: with its rows along the first dimension.
        items: of the index.
        value: a number, or a plain tensor.

    Raises:
        IndexError: torch's own.
    """
    if World.get().observation is not None or not _may_be(batch, items):
        return None  # it has to see that rows are told apart
    if isinstance(value, Tensor) and (isinstance(value, BatchTensor) or value.requires_grad):
        return None
    pick = _pick(batch, items)
    if isinstance(value, Tensor):
        if value.dim() > len(pick.shape) or value.device != batch.device:
            return None
        value = value.expand(pick.shape)[pick.is_own.expand(pick.shape[: pick.dims])]
    shape = pick.shape[: pick.dims]
    is_own = pick.is_own.expand(shape)
    others = (item.expand(shape)[is_own] if isinstance(item, Tensor) else item for item in pick.items)
    return (pick.rows.expand(shape)[is_own], *others), value


def picked_by_batch(batch: BatchTensor, items: Sequence[Any], func: Any = Tensor.__getitem__) -> BatchTensor | None:
    """Give the rows at indices that are a batch; None if it is another kind of index.

    Args:
        batch: that is picked from.
        items: of the index.
        func: that picks: ``Tensor.__getitem__``, which counts negative indices from the end, or ``index_select``.
    """
    is_select = func != Tensor.__getitem__
    its = _of_batch(batch, items)
    if its is None:
        return None
    local = _local_index(batch, items, its, from_end=not is_select)
    if local is not None:
        return BatchTensor.from_local(to_local(batch)[local], its)
    if _leading(items) or sum(isinstance(item, Tensor) for item in items) > 1:
        return None
    whole, index = full_tensor(batch), items[0]
    looked_up: BatchTensor = (
        lookups.selected(func, whole, 0, index) if is_select else lookups.at_indices(func, whole, tuple(items))
    )
    return looked_up


def written_by_batch(batch: BatchTensor, items: Sequence[Any], value: Any) -> tuple[tuple[Any, ...], Any] | None:
    """Give what is to be written to this rank's rows: an index, and values; None if it is another kind of index.

    Args:
        batch: that is written to.
        items: of the index.
        value: a number or a tensor.
    """
    its = _of_batch(batch, items)
    local = None if its is None else _local_index(batch, items, its)
    if its is None or local is None:
        return None
    if isinstance(value, Tensor):
        given = [item for item in items if item is not Ellipsis]
        kept = sum(item is None or isinstance(item, slice) for item in given)
        unnamed = batch.dim() - sum(item is not None for item in given)
        dims = broadcast_dims([item for item in items if isinstance(item, Tensor)]) + kept + unnamed
        if not _lies_beside(value, its, dims):
            return None
        value = cutter(its, dims)(value)
    note_told_rows()
    return local, value


def local_rows(batch: BatchTensor, dim: int, numbers: BatchTensor, from_end: bool = True) -> Tensor | None:
    """Give the numbers of rows, counted from this rank's first; None if some rank has numbers of another's rows.

    Args:
        batch: whose rows they are.
        dim: that they count along.
        numbers: int64, of rows of the whole.
        from_end: negative ones count from the end.
    """
    layout, world = batch._layout, World.get()
    if layout.dim != dim or numbers.dtype != torch.long or numbers.dim() == 0:
        return None
    its = to_local(numbers)
    rows, is_own = layout.rows(world.rank).find(torch.where(its < 0, its + layout.total, its) if from_end else its)
    if lists_own_rows(its, layout):
        return rows
    with nullcontext() if world.observation is None else world.observation.paused():  # own rows meet no others
        are_own = int(world.all_reduce(is_own.all().to(torch.int64))) == world.size
    return rows if are_own else None


def _of_batch(batch: BatchTensor, items: Sequence[Any]) -> Layout | None:
    """How what is picked is dealt, if the rows are picked by a batch; else None."""
    layout, first = batch._layout, _leading(items)
    if first == len(items) or not isinstance(items[first], BatchTensor) or items[first].dim() == 0:
        return None
    if layout.dim != sum(item is not None for item in items[:first]):
        return None
    indices = [item for item in items if isinstance(item, Tensor)]
    if not all(isinstance(item, Tensor) or item is None or type(item) in _PLAIN for item in items):
        return None
    its = common_layout(indices) if all(item.dtype == torch.long for item in indices) else None
    if its is None or first == 0:
        return its
    return its.at(first + its.dim) if len(indices) == 1 else None  # torch may move several to the front


def _leading(items: Sequence[Any]) -> int:
    """How many items come before the first that picks."""
    return next((at for at, item in enumerate(items) if not (item is None or _is_all(item))), len(items))


def _is_all(item: Any) -> bool:
    return isinstance(item, slice) and item == slice(None)


def _local_index(
    batch: BatchTensor, items: Sequence[Any], its: Layout, from_end: bool = True
) -> tuple[Any, ...] | None:
    first = _leading(items)
    rows = local_rows(batch, batch._layout.dim, items[first], from_end)
    cut = cutter(its, broadcast_dims([item for item in items if isinstance(item, Tensor)]))
    return None if rows is None else (*items[:first], rows, *map(cut, items[first + 1 :]))


def _lies_beside(value: Tensor, layout: Layout, dims: int) -> bool:
    """Tell whether a tensor has its rows where a result has them, or the same for all of them."""
    back = dims - layout.dim
    if isinstance(value, BatchTensor):
        return value._layout.lies_as(layout) and value.dim() - value._layout.dim == back and value.dim() <= dims
    return value.dim() <= dims and (value.dim() < back or value.shape[-back] in (1, layout.total))


def _may_be(batch: BatchTensor, items: Sequence[Any]) -> bool:
    layout = batch._layout
    if layout.dim != 0 or not layout.is_consecutive or min(layout.counts) == 0 or len(items) < 2:
        return False
    rest = (_is_index(item, batch.device) or type(item) in (int, slice) for item in items[1:])
    return _is_index(items[0], batch.device) and all(rest)


def _is_index(item: Any, device: torch.device) -> bool:
    if not isinstance(item, Tensor) or isinstance(item, BatchTensor):
        return False
    return item.dtype == torch.long and item.dim() > 0 and item.device == device


def _pick(batch: BatchTensor, items: Sequence[Any]) -> _Pick:
    layout, rank = batch._layout, World.get().rank
    # All of it, of one number in memory: errors are those of the whole.
    shape = to_local(batch).detach().new_empty(()).expand(batch.shape)[tuple(items)].shape
    dims = len(torch.broadcast_shapes(*(item.shape for item in items if isinstance(item, Tensor))))
    rows = torch.where(items[0] < 0, items[0] + layout.total, items[0]) - sum(layout.counts[:rank])
    return _Pick(shape, dims, rows, (rows >= 0) & (rows < layout.counts[rank]), items[1:])
