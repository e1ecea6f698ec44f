"""Tell whether a module that was tried on rows gave the same as on the whole batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..batch.crossings import own_rows
from ..batch.world import Layout, World
from ..structure import leaves


def compare(ours: Any, whole: Any, layout: Layout, vector: bool = False) -> dict[str, int | None] | None:
    """Compare what a module gave for its rows with what it gave for the whole batch, without communication.

    Returns:
        the batch dimension of each tensor, by path (None: the same on both), or None if the rows are not independent.
    """
    mine, theirs = list(leaves(ours)), list(leaves(whole))
    if [path for path, _ in mine] != [path for path, _ in theirs]:
        return None
    own = layout.counts[World.get().rank]
    dims: dict[str, int | None] = {}
    for (path, left), (_, right) in zip(mine, theirs, strict=True):
        if not isinstance(left, Tensor) or not isinstance(right, Tensor):
            if isinstance(left, (bool, int, float, str)) and left != right:
                return None
            continue
        if left.dim() == 0 == right.dim() and vector:
            dims[path] = 0
            continue
        # Own rows are fewer than all rows, so the dimension in which the shapes differ is the batch's.
        differing = [
            dim for dim, sizes in enumerate(zip(left.shape, right.shape, strict=False)) if sizes[0] != sizes[1]
        ]
        if left.dim() != right.dim() or len(differing) > 1:
            return None
        dims[path] = differing[0] if differing else None
        if differing:
            if (left.shape[differing[0]], right.shape[differing[0]]) != (own, layout.total):
                return None
            right = own_rows(right, layout.at(differing[0]))
        if not close(left, right):
            return None
    return dims


def close(left: Tensor, right: Tensor) -> bool:
    """Equal up to what another batch size does to a kernel's rounding; mixing rows changes far more."""
    if left.shape != right.shape:
        return False
    if not (left.is_floating_point() or left.is_complex()):
        return True  # an argmax may tip over; its logits are compared
    finite = torch.isfinite(right)
    if not torch.equal(torch.isfinite(left), finite):
        return False
    left, right = left[finite], right[finite]
    scale = float(right.abs().max()) if right.numel() else 0.0
    precision = torch.finfo(left.dtype).eps ** 0.5
    return bool(((left - right).abs() <= precision * max(scale, 1e-30)).all())
