"""``x[mask]``: each rank picks of its own rows, and what is picked lies in their order.

How many entries the ranks have picked is all that they tell each other. ``logits[labels != -100]`` is a batch of that
many rows, dealt as unevenly as the mask has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..crossings import local_rows, shard
from ..forms import full_tensor_if_gathered, to_local
from ..layout import Layout
from ..tensor import BatchTensor, Rule
from ..world import World
from .elementwise import cutter, to_local_form
from .mask_counts import layout_of_picked


def is_mask(item: Any) -> bool:
    """Tell a mask that an index picks by; of bytes, as before torch 1.2."""
    return isinstance(item, Tensor) and item.dtype in (torch.bool, torch.uint8) and item.dim() > 0


def spelled_out(items: tuple[Any, ...], dims: int, dim: int) -> tuple[Any, ...]:
    """Write plain masks of other dimensions than that of the rows as the indices of what they pick.

    Args:
        items: of an index.
        dims: of what is picked from.
        dim: of its rows.
    """
    if not any(is_mask(item) and not isinstance(item, BatchTensor) for item in items):
        return items
    used = sum(item.dim() if is_mask(item) else item is not None and item is not Ellipsis for item in items)
    written: list[Any] = []
    at = 0
    for item in items:
        covers = item.dim() if is_mask(item) else dims - used if item is Ellipsis else int(item is not None)
        is_beside = not at <= dim < at + covers
        written += item.nonzero(as_tuple=True) if is_mask(item) and is_beside and type(item) is Tensor else [item]
        at += covers
    return tuple(written)


def picked(source: Tensor, items: Sequence[Any], func: Any = Tensor.__getitem__) -> BatchTensor | None:
    """Give what a mask of rows picks; None if it is another kind of index, or a rank would have nothing.

    Args:
        source: a batch, or what every rank has whole of as many rows.
        items: of the index, the first of which may be a mask.
        func: that picks: ``Tensor.__getitem__``, or ``masked_select``.
    """
    mask = items[0]
    batch = next((value for value in (source, mask) if isinstance(value, BatchTensor)), None)
    if batch is None or not is_mask(mask):
        return None
    layout, seen = batch._layout, World.get().observation
    if not _fits(source, mask, layout):
        return None
    if seen is None and _is_known(source) and _is_known(mask):
        return None  # nothing has to be told, and what is picked is whole as well
    rest = items[1:]
    indices = [item for item in rest if isinstance(item, Tensor)]
    if not all(isinstance(item, BatchTensor) and item.dtype == torch.long and item.dim() == 1 for item in indices):
        return None
    if not all(isinstance(item, Tensor) or item is None or type(item) in (int, slice, type(...)) for item in rest):
        return None
    its = layout_of_picked(mask, layout)
    if its is None or any(getattr(item, "_layout", None) != its for item in indices):
        return None
    rows = to_local(source) if isinstance(source, BatchTensor) else shard(source, layout)
    local = (_local(mask, layout), *map(to_local_form, rest))
    found = BatchTensor.from_local(func(rows, local if rest else local[0]), its)
    if seen is not None:
        seen.picks.add(found, local[0], seen.function)
    return found


def select(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.masked_select(mask)``, which are broadcast with each other."""
    if len(args) != 2 or kwargs or not all(isinstance(value, Tensor) for value in args) or not is_mask(args[1]):
        return NotImplemented
    try:
        shape = torch.broadcast_shapes(*(value.shape for value in args))
    except RuntimeError:
        return NotImplemented  # which raises what torch's own says
    source, mask = (value if value.shape == shape else value.expand(shape) for value in args)
    by_mask = picked(source, (mask,), func)
    return NotImplemented if by_mask is None else by_mask


def written(batch: BatchTensor, mask: Any, value: Any) -> tuple[Tensor, Any] | None:
    """Give what is to be written to this rank's rows: a mask, and values; None if it is another kind of index.

    Args:
        batch: that is written to.
        mask: the index.
        value: a number or a tensor.
    """
    layout = batch._layout
    if not is_mask(mask) or not _fits(batch, mask, layout):
        return None
    if not isinstance(value, Tensor) or (value.dim() == 0 and not isinstance(value, BatchTensor)):
        return _local(mask, layout), value if not isinstance(value, Tensor) else cutter(Layout((), 0, -1), 1)(value)
    own = _local(mask, layout).bool()  # torch writes one entry, as a rank may have, by such alone
    dims = batch.dim() - mask.dim() + 1  # of what is picked, which comes first
    if value.dim() < dims and not isinstance(value, BatchTensor):
        return own, cutter(Layout((), 0, -1), dims)(value)
    seen = World.get().observation
    if value.dim() != dims:
        return None
    if seen is not None and not seen.picks.is_by(value, _local(mask, layout)):
        seen.note_whole_batch_use()  # what it picked has become something else
    its = layout_of_picked(mask, layout)
    if its is None or (isinstance(value, BatchTensor) and value._layout != its):
        return None
    return own, cutter(its, dims)(value)


def _fits(source: Tensor, mask: Tensor, layout: Layout) -> bool:
    if isinstance(mask, BatchTensor) and mask._layout != layout:
        return False
    return layout.dim < mask.dim() and mask.shape == source.shape[: mask.dim()]


def _is_known(tensor: Tensor) -> bool:
    return not isinstance(tensor, BatchTensor) or full_tensor_if_gathered(tensor) is not None


def _local(mask: Tensor, layout: Layout) -> Tensor:
    return to_local(mask) if isinstance(mask, BatchTensor) else local_rows(mask, layout)


def rules() -> list[tuple[Any, Rule]]:
    """Functions that only pick by masks; an index may do so as well."""
    return [(torch.masked_select, select), (Tensor.masked_select, select)]
