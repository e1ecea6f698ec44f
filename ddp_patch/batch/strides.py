"""How the whole of a batch lies in memory, which random numbers are drawn in the order of."""

from __future__ import annotations

import torch
from torch import Tensor

from .layout import Layout


def tell_their_order(layout: Layout) -> bool:
    """Tell whether every rank's rows show how the whole lies; the stride of a dimension of one entry says nothing."""
    return min(layout.counts) > 1 or min(layout.counts) == max(layout.counts)


def leader(layout: Layout) -> int:
    """The rank whose rows tell best."""
    return layout.counts.index(max(layout.counts))


def empty_whole(rows: Tensor, layout: Layout, strides: tuple[int, ...]) -> Tensor:
    """Memory for the whole batch, in the order of these strides and without holes."""
    shape = [*rows.shape[: layout.dim], layout.total, *rows.shape[layout.dim + 1 :]]
    if is_contiguous(shape, strides):  # nearly always
        return rows.new_empty(shape)
    # torch's own answer to what a copy of such a tensor looks like; a meta tensor holds no memory.
    return rows.new_empty_strided(shape, torch.empty_like(torch.empty_strided(shape, strides, device="meta")).stride())


def is_contiguous(shape: list[int], strides: tuple[int, ...]) -> bool:
    """Tell whether the last dimension is the innermost, and so on."""
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def scaled(rows: Tensor, layout: Layout) -> tuple[int, ...]:
    """Strides that the whole batch would have, were it laid out as these rows are."""
    step, length, dim = rows.stride(layout.dim), rows.shape[layout.dim], layout.dim
    if length == 0:
        return rows.stride()
    return tuple(
        # Of two equal strides, that of the outer dimension is larger in the whole.
        s // length * layout.total if s > step or (s == step and at < dim) else s
        for at, s in enumerate(rows.stride())
    )
