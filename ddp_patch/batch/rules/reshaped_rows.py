"""Where the rows of a batch are after a reshape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..layout import Layout


def follow(shape: Sequence[int], layout: Layout, new_shape: Sequence[int]) -> Layout | None:
    """Find the batch dimension of a reshaped tensor.

    ``[B, T, V] -> [B*T, V]`` is followed, and back, and ``[T, B] -> [T*B]``, where the batch lies T times end to end.

    Args:
        shape: global shape before.
        layout: how it is dealt.
        new_shape: global shape after, without -1.
    """
    before = math.prod(shape[: layout.dim])
    after = math.prod(shape[layout.dim + 1 :])
    if layout.total == 0 or before == 0 or after == 0:
        return None
    passed = 1
    for dim, size in enumerate(new_shape):
        if passed == before and size != 1:
            return _resized(layout, size, dim) or _unrepeated(layout, new_shape, dim)
        times, rest = divmod(before, passed)
        if passed != before and not rest and size % (times * layout.total) == 0:
            return layout.times(size // (times * layout.total), dim).repeated(times, dim)
        passed *= size
    return None


def _unrepeated(layout: Layout, new_shape: Sequence[int], dim: int) -> Layout | None:
    """``[T*B] -> [T, B]``, ``[T*B*F] -> [T, B, F]`` and ``[2*B] -> [2, B]``, where that is how the batch was joined."""
    times, rows = new_shape[dim], math.prod(new_shape[dim + 1 : dim + 2])
    factor, rest = divmod(layout.total, times * rows)
    each = layout.unrepeated(times, dim + 1) if factor and not rest else None
    return each if each is None or factor == 1 else each.divided(factor, dim + 1)


def _resized(layout: Layout, size: int, dim: int) -> Layout | None:
    if size == layout.total:
        return layout.at(dim)
    if size % layout.total == 0:
        return layout.times(size // layout.total, dim)
    if layout.total % size == 0:
        return layout.divided(layout.total // size, dim)
    return None


def resolve(numel: int, sizes: Sequence[Any]) -> list[int] | None:
    """Replace the -1 of a reshape; None for sizes that torch would refuse."""
    # ``torch.div(x.size(1), 2)`` is a tensor, of which torch takes the number.
    sizes = [int(size) if type(size) is Tensor and size.dim() == 0 else size for size in sizes]
    if not all(type(size) is int for size in sizes):
        return None
    product = math.prod(size for size in sizes if size != -1)
    if list(sizes).count(-1) > 1 or product <= 0 or numel % product:
        return None
    resolved = [numel // product if size == -1 else size for size in sizes]
    return resolved if math.prod(resolved) == numel else None
