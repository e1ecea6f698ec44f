"""How many entries of a batch are not zero: all that ranks tell each other of what a mask picks."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from ..forms import full_tensor_if_gathered, to_local
from ..layout import Layout
from ..tensor import BatchTensor
from ..versions import version
from ..world import World

_MOST_PIECES = 256  # of what is picked, each dealt in its own way


def layout_of_picked(mask: Tensor, layout: Layout) -> Layout | None:
    """Tell how what a mask picks is dealt, along the first dimension: each rank has what it picks of its own rows.

    Args:
        mask: a batch, or a plain tensor of as many rows.
        layout: of the batch that it picks from.

    Returns:
        None where a rank would have nothing, or where it would be dealt in too many pieces: one for each entry along
        the dimensions before that of the rows.
    """
    if layout.order is not None:
        return None
    if mask.shape[: layout.dim].numel() * max(len(layout.pieces), 1) > _MOST_PIECES:
        return None
    pieces = _pieces(mask, layout)
    its = Layout.of_pieces(pieces, 0) if pieces else None
    return its if its is not None and min(its.counts) > 0 else None


def _pieces(mask: Tensor, layout: Layout) -> tuple[tuple[int, ...], ...]:
    """How many entries each rank picks, of each piece."""
    of_ranks = layout.pieces or (layout.counts,)
    batch = mask if isinstance(mask, BatchTensor) else None
    whole = mask if batch is None else full_tensor_if_gathered(batch)
    if batch is None or whole is not None:
        assert whole is not None
        found = _counted(whole, layout.dim, [count for piece in of_ranks for count in piece])
        return tuple(map(tuple, found.reshape(-1, len(layout.counts)).tolist()))
    rows: Any = to_local(batch)
    known = getattr(rows, "_ddp_patch_counts", None)  # logits[mask], labels[mask]
    if known is None or known[0] != version(rows) or known[2]() is not rows or rows.is_inference():
        world = World.get()
        own = _counted(rows, layout.dim, [piece[world.rank] for piece in of_ranks]).flatten()
        slots = torch.zeros(len(own), world.size, dtype=torch.int64, device=rows.device)
        slots[:, world.rank] = own
        with nullcontext() if world.observation is None else world.observation.paused():  # no row meets another
            told = world.all_reduce(slots).tolist()
        known = rows._ddp_patch_counts = version(rows), tuple(map(tuple, told)), weakref.ref(rows)
    counts: tuple[tuple[int, ...], ...] = known[1]
    return counts


def _counted(mask: Tensor, dim: int, sizes: list[int]) -> Tensor:
    """Count what is not zero in each of some parts along a dimension, for each entry before that.

    Returns:
        int64 ``[entries, parts]``.
    """
    is_one = mask.dim() == dim + 1
    of_rows = (mask != 0).long() if is_one else mask.flatten(dim + 1).count_nonzero(dim + 1)
    of_rows = of_rows.reshape(mask.shape[:dim].numel(), mask.shape[dim])
    return torch.stack([part.sum(1) for part in of_rows.split(sizes, 1)], 1)
