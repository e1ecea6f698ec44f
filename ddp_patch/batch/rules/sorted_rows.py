"""``torch.sort(experts)``: each rank keeps its rows, in the order in which all of them are sorted.

The ranks tell each other what is sorted, and no more. What a rank picks in that order is its own rows, and what is put
back in its places is as well. Mixtures of experts sort their tokens like that, compute each group of them with a matrix
of its own, and put them back at the end.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..aliases import is_held_alone
from ..factories import counts
from ..forms import full_tensor_if_gathered, to_local
from ..layout import Layout
from ..tensor import BatchTensor, Rule
from ..world import World
from .dims import along, named_dims
from .elementwise import cutter
from .listed_entries import note_listed, note_told_rows, numbers_of_rows, ordered
from .picked_layouts import picked_layout, sorted_layout
from .shapes_in_place import take_forms

_WHOLE_NUMBERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)  # that are compared
_NOT_A_BYTE = 255  # what a rank tells if it has other than smaller whole numbers
_OF_BOTH = (torch.sort, Tensor.sort)
_UNEVEN = 1.25  # times the even share of rows, up to which what is picked stays where it is
_along_others = along("sort", 1, -1)


def sort(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.sort()``, ``torch.sort(x, descending=True)``, ``x.argsort()``."""
    batch, world = args[0] if args else None, World.get()
    if not isinstance(batch, BatchTensor) or batch.dim() != 1:
        return _along_others(func, args, kwargs)
    if not _is_in_forward(world) or not (batch.is_floating_point() or batch.dtype in _WHOLE_NUMBERS):
        return NotImplemented
    if to_local(batch).requires_grad and torch.is_grad_enabled() and func in _OF_BOTH:
        return NotImplemented
    descending = kwargs.get("descending", args[2] if len(args) > 2 else False)
    if named_dims(batch, args, kwargs, 1, -1) is None or type(descending) is not bool:
        return NotImplemented
    if not set(kwargs) <= {"dim", "stable", "descending"} or len(args) > 3:
        return NotImplemented
    both = (None if descending else _inverse(batch)) or _sorted(batch, func, args, kwargs)
    note_told_rows()
    return torch.return_types.sort(both) if func in _OF_BOTH else both[1]


def reordered(batch: BatchTensor, order: Any, values: Any) -> bool:
    """Write ``y[order] = x``, which leaves nothing of ``y``: it is dealt from now on as what was sorted.

    Args:
        batch: that is written to.
        order: of all rows, as ``sort`` gives it.
        values: as many.

    Returns:
        whether this was done; False if it is another index, or somebody may look at the memory that is left.
    """
    if not isinstance(order, BatchTensor) or order.dim() != 1 or not isinstance(values, Tensor):
        return False
    sources, numbers = order._layout, to_local(order)
    layout = ordered(numbers)
    if layout is None or batch._layout.lies_as(layout) or batch._layout.dim != 0:
        return False
    if values.shape != batch.shape or values.device != batch.device:
        return False
    if isinstance(values, BatchTensor) and values._layout != sources:
        return False
    world, dtype, is_alone = World.get(), batch.dtype, is_held_alone(batch)  # what is garbage is not so on every rank
    with nullcontext() if world.observation is None else world.observation.paused():
        are_alone = int(world.all_reduce(torch.tensor(int(is_alone)))) == world.size  # on the host: no device waits
    if to_local(batch).requires_grad or not are_alone:
        return False
    if (seen := world.observation) is not None:
        seen.note_resize(batch)
    note_told_rows()
    placed = _placed(numbers, layout, cutter(sources, batch.dim())(values), dtype)
    if not isinstance(values, BatchTensor) and counts(values, batch._layout.total):
        note_listed(placed, sources, is_order=True)  # the way back
    take_forms(batch, BatchTensor.from_local(placed, layout))
    return True


def _sorted(batch: BatchTensor, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Sort as one process does, equal ones too: which of them comes first is left open, and torch's kernels differ."""
    rows, layout, world = to_local(batch).detach(), batch._layout, World.get()
    options = {name: its for name, its in kwargs.items() if name != "input"}
    whole, is_right = _whole(batch)
    order = torch.argsort(whole, *args[1:], **options)
    its = sorted_layout(layout, order, is_right)
    if its is None:
        order = torch.argsort(_told(world, rows, layout), *args[1:], **options)
        its = sorted_layout(layout, order, None)
        assert its is not None
    own = its.rows(world.rank).of(order, 0)
    note_listed(own, layout, is_order=True)
    values = rows[layout.rows(world.rank).find(own)[0]]
    return BatchTensor.from_local(values, its), BatchTensor.from_local(own, its)


def picked(batch: BatchTensor, index: Any) -> BatchTensor | None:
    """Give rows in the order of an index that every rank has; each rank keeps its own of them.

    Args:
        batch: with its rows along the first dimension.
        index: of rows.

    Returns:
        None outside of a forward, or if it is another index, or if ranks would have very different numbers of rows.
    """
    layout, world = batch._layout, World.get()
    if not _is_in_forward(world) or layout.dim != 0 or isinstance(index, BatchTensor):
        return None
    if isinstance(index, list) and index and all(type(number) is int for number in index):
        index = torch.tensor(index, device=batch.device)
    if not isinstance(index, Tensor) or index.dtype != torch.long or index.dim() != 1 or index.device != batch.device:
        return None
    numbers = torch.where(index < 0, index + layout.total, index)
    its = picked_layout(layout, numbers)
    if its.total != len(numbers) or not 0 < max(its.counts) <= _UNEVEN * its.total / world.size or min(its.counts) == 0:
        return None
    note_told_rows()
    own = its.rows(world.rank).of(numbers, 0)
    return BatchTensor.from_local(to_local(batch)[layout.rows(world.rank).find(own)[0]], its)


def _is_in_forward(world: World) -> bool:
    """Tell whether a forward computes on batches. Elsewhere a model may be called, which wants rows in runs."""
    return (world.tells_batch_sizes or world.observation is not None) and not world.skips_collectives


def _inverse(batch: BatchTensor) -> tuple[Tensor, Tensor] | None:
    """Sort an order: the rows in theirs, and where each of them was in it."""
    numbers, its = to_local(batch), batch._layout
    layout = ordered(numbers)
    if layout is None:
        return None
    was_at = _placed(numbers, layout, numbers_of_rows(its, numbers.device), torch.int64)
    note_listed(was_at, its, is_order=True)
    rows = numbers_of_rows(layout, numbers.device)
    return BatchTensor.from_local(rows, layout), BatchTensor.from_local(was_at, layout)


def _whole(batch: BatchTensor) -> tuple[Tensor, Tensor | None]:
    """What is sorted, of all ranks. Small whole numbers, as experts have, travel in a byte each.

    Returns:
        Them, and whether it is them, 0-dim; None if it is.
    """
    rows, layout, world = to_local(batch).detach(), batch._layout, World.get()
    whole = full_tensor_if_gathered(batch)
    if whole is not None:
        return whole.detach(), None
    if not rows.is_floating_point() and rows.dtype.itemsize > 1:
        fits = ((rows >= 0) & (rows < _NOT_A_BYTE)).all()
        told = _told(world, torch.where(fits, rows, _NOT_A_BYTE).to(torch.uint8), layout)
        return told.to(rows.dtype), (told != _NOT_A_BYTE).all()
    return _told(world, rows, layout), None


def _told(world: World, rows: Tensor, layout: Layout) -> Tensor:
    with nullcontext() if world.observation is None else world.observation.paused():  # no row meets another
        every = world.all_gather(F.pad(rows, (0, max(layout.counts) - len(rows))).view(torch.uint8))
    whole = rows.new_empty(layout.total)
    for rank, count in enumerate(layout.counts):
        layout.rows(rank).put(every[rank].view(rows.dtype)[:count], whole, 0)
    return whole


def _placed(order: Tensor, layout: Layout, values: Tensor, dtype: torch.dtype) -> Tensor:
    """Put values where an order has them from.

    Args:
        order: of the rows of a batch, this rank's.
        layout: of that batch.
        values: one for each.
        dtype: of the result.
    """
    runs = layout.rows(World.get().rank)
    placed = values.new_empty(runs.count, *values.shape[1:], dtype=dtype)
    placed[runs.find(order)[0]] = values.to(dtype)
    return placed


def rules() -> list[tuple[Any, Rule]]:
    """Functions that sort."""
    return [(func, sort) for func in (torch.sort, Tensor.sort, torch.argsort, Tensor.argsort)]
