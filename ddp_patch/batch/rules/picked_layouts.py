"""Whose rows are where, once they were picked or sorted."""

from __future__ import annotations

import weakref
from collections import deque

import torch
from torch import Tensor

from ..layout import Layout
from ..row_order import RowOrder

_latest: deque[weakref.ref[RowOrder]] = deque(maxlen=4)


def picked_layout(layout: Layout, numbers: Tensor) -> Layout:
    """Tell whose rows are picked where."""
    known = _known(layout, numbers)
    if known is not None:
        return known
    owner = _owners(layout, numbers)
    is_consecutive = (owner[1:] >= owner[:-1]).all()
    *of_ranks, runs = torch.cat(
        [torch.bincount(owner + 1, minlength=len(layout.counts) + 1)[1:], is_consecutive[None]]
    ).tolist()
    if runs or sum(of_ranks) < len(numbers):
        return Layout(tuple(of_ranks), 0, sum(of_ranks))
    return _in_order(layout, numbers, owner, tuple(of_ranks))


def sorted_layout(layout: Layout, order: Tensor, is_right: Tensor | None) -> Layout | None:
    """Tell whose rows are where, once they are sorted: each rank has as many as before, which nobody has to look at.

    Args:
        layout: before.
        order: all of its rows.
        is_right: whether that is what it is, which is looked at along with the rest; None if it is.

    Returns:
        None if it is not.
    """
    known = _known(layout, order) if is_right is None else None
    if known is not None:
        return known
    owner = _owners(layout, order)
    asked = [(owner[1:] >= owner[:-1]).all()] if is_right is None else [(owner[1:] >= owner[:-1]).all(), is_right]
    runs, *is_good = torch.stack(asked).tolist()
    if not all(is_good):
        return None
    if runs:
        return Layout(layout.counts, 0, layout.total)
    return (None if is_right is None else _known(layout, order)) or _in_order(layout, order, owner, layout.counts)


def _owners(layout: Layout, numbers: Tensor) -> Tensor:
    """Tell whose each of some rows is; -1 of those that nobody has."""
    owner = numbers.new_full(numbers.shape, -1)
    for rank in range(len(layout.counts)):
        owner.masked_fill_(layout.rows(rank).find(numbers)[1], rank)
    return owner


def _in_order(layout: Layout, numbers: Tensor, owner: Tensor, counts: tuple[int, ...]) -> Layout:
    """Lay rows as they were picked."""

    def rows(rank: int) -> Tensor:
        return torch.nonzero_static(owner == rank, size=counts[rank]).flatten()  # which waits for no device

    order = RowOrder(len(numbers), rows, (layout, "picked", numbers))
    _latest.append(weakref.ref(order))
    return Layout(counts, 0, len(numbers), (), order)


def _known(layout: Layout, numbers: Tensor) -> Layout | None:
    """Lay rows as those are that were picked at these numbers of late; None if none were."""
    orders = [order for reference in _latest if (order := reference()) is not None]
    known = next((order for order in orders if order.was_picked(layout, numbers)), None)
    if known is None:
        return None
    _latest.append(weakref.ref(known))
    return Layout(tuple(known.rows(rank).count for rank in range(len(layout.counts))), 0, known.total, (), known)
