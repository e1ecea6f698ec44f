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
from ..tensor import BatchTensor
from ..world import World
from . import lookups
from .elementwise import broadcast_dims, common_layout, cutter

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
        batch: with its rows along the first dimension.
        items: of the index.
        func: that picks: ``Tensor.__getitem__``, which counts negative indices from the end, or ``index_select``.
    """
    index, layout, is_select = items[0], batch._layout, func != Tensor.__getitem__
    if layout.dim != 0 or layout.pieces or not isinstance(index, BatchTensor) or index.dim() == 0:
        return None
    indices = [item for item in items if isinstance(item, Tensor)]
    its = common_layout(indices) if all(item.dtype == torch.long for item in indices) else None
    if its is None or not all(isinstance(item, Tensor) or item is None or type(item) in _PLAIN for item in items):
        return None
    world, cut = World.get(), cutter(its, broadcast_dims(indices))
    rows = to_local(index)
    rows = rows if is_select else torch.where(rows < 0, rows + layout.total, rows)
    rows = rows - sum(layout.counts[: world.rank])
    is_own = ((rows >= 0) & (rows < layout.counts[world.rank])).all()
    with nullcontext() if world.observation is None else world.observation.paused():  # own rows meet no others
        are_own = int(world.all_reduce(is_own.to(torch.int64))) == world.size
    if are_own:
        return BatchTensor.from_local(to_local(batch)[(rows, *map(cut, items[1:]))], its)
    if len(indices) > 1:
        return None
    whole = full_tensor(batch)
    looked_up: BatchTensor = (
        lookups.selected(func, whole, 0, index) if is_select else lookups.at_indices(func, whole, tuple(items))
    )
    return looked_up


def _may_be(batch: BatchTensor, items: Sequence[Any]) -> bool:
    layout = batch._layout
    if layout.dim != 0 or layout.pieces or min(layout.counts) == 0 or len(items) < 2:
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
