"""Cuts of a batch along its rows that need no other rank: where it was joined, of sorted rows, and all of it."""

from __future__ import annotations

from typing import Any

import torch

from ..forms import is_whole_shared, to_local
from ..tensor import BatchTensor
from ..world import World

_CUTS = ("split", "chunk", "tensor_split", "split_with_sizes", "narrow")


def is_all(rows: slice, total: int) -> bool:
    """Tell a slice of all rows, as ``x[0:1024]`` is where there are fewer; with more rows it is another."""
    if rows == slice(None):
        return True
    is_all = rows.indices(total) == (0, total, 1)
    if is_all and (seen := World.get().observation) is not None:
        seen.is_size_dependent = True
    return is_all


def parts_of(func: Any, batch: BatchTensor, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[BatchTensor, ...]:
    """Cut a batch where it was joined; nothing if it is cut elsewhere, or a function does more than cutting."""
    layout = batch._layout
    if getattr(func, "__name__", "") not in _CUTS:
        return ()
    shape = [1] * batch.dim()
    shape[layout.dim] = layout.total
    cut = func(torch.empty(shape, device="meta"), *rest, **kwargs)
    parts = []
    for piece in cut if isinstance(cut, (list, tuple)) else [cut]:
        start = piece.storage_offset()
        part = part_of(batch, start, start + piece.shape[layout.dim])
        if part is None:
            return ()
        parts.append(part)
    return tuple(parts)


def part_of(batch: BatchTensor, start: int, stop: int) -> BatchTensor | None:
    """Some rows of a batch that was joined, if they are what was joined; some that were sorted; or all of a batch."""
    layout, found = batch._layout, None
    if (start, stop) == (0, layout.total):
        found = layout, 0
    elif not layout.is_consecutive:
        found = layout.part(start, stop, World.get().rank)
    if found is None or is_whole_shared(batch):
        return None
    layout, first = found
    if (seen := World.get().observation) is not None:
        seen.is_size_dependent = True
    rows = to_local(batch).narrow(layout.dim, first, layout.counts[World.get().rank])
    return BatchTensor.from_local(rows, layout)
