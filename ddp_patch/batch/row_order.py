"""Rows of a batch that were put in another order, as sorting does: each rank keeps its own, wherever they belong now.

They are known by their numbers, where rows that were only dealt are runs. What is made of such rows, what is cut out of
them and what they are joined to has an order of its own; made twice, it is the same one, so that the two lie alike.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from .row_numbers import RowNumbers


class RowOrder:
    """Which rows are whose, after they were put in another order."""

    def __init__(self, total: int, numbers: Callable[[int], Tensor], made_by: tuple[Any, ...] = ()) -> None:
        """Be an order.

        Args:
            total: how many rows there are.
            numbers: gives those of a rank's, ascending, int64.
            made_by: of which order, how, and with which arguments, if of one.
        """
        self.total, self._make, self._made_by = total, numbers, made_by
        self._numbers: dict[int, Tensor] = {}
        self._derived: weakref.WeakValueDictionary[Hashable, RowOrder] = weakref.WeakValueDictionary()

    def rows(self, rank: int) -> RowNumbers:
        """Which rows a rank holds."""
        if rank not in self._numbers:
            self._numbers[rank] = self._make(rank)
        return RowNumbers(self._numbers[rank], self.total)

    def times(self, factor: int) -> RowOrder:
        """Every row became ``factor`` rows."""
        base, before = self._undone("times", 1)
        return base._one("times", before * factor, base.total * before * factor, lambda rows, by: rows.times(by))

    def divided(self, factor: int) -> RowOrder | None:
        """Every ``factor`` rows became one; None where they were not made of one."""
        base, before = self._undone("times", 1)
        return None if before % factor else base.times(before // factor)

    def repeated(self, times: int) -> RowOrder:
        """All rows, several times over."""
        return self._one("repeated", times, self.total * times, lambda rows, by: rows.repeated(by))

    def unrepeated(self, times: int) -> RowOrder | None:
        """The way back; None where they were not repeated so often."""
        base, before = self._undone("repeated", 1)
        return base if before == times else None

    def part(self, start: int, stop: int) -> RowOrder:
        """Rows from one to another."""
        base, (first, _) = self._undone("part", (0, self.total))
        if (start, stop) == (0, self.total):
            return self
        edges = first + start, first + stop
        if edges == (0, base.total):
            return base
        return base._one("part", edges, stop - start, lambda rows, edges: rows.part(*edges))

    def joined(self, others: Sequence[Any]) -> RowOrder:
        """Lay batches end to end.

        Args:
            others: layouts, of which this order is that of one.
        """
        base, (first, last) = self._undone("part", (0, self.total))
        for its in others[1:]:
            of, (start, stop) = its.order._undone("part", (0, its.total)) if its.order else (None, (0, 0))
            if of is not base or start != last:
                break
            last = stop
        else:
            if others[0].order is self:
                return base.part(first, last)

        def numbers(rank: int) -> Tensor:
            every, device, before = [], self.rows(rank).device, 0
            for its in others:
                every.append(its.rows(rank).numbers(device) + before)
                before += its.total
            return torch.cat(every)

        return self._kept(("joined", *others), lambda: RowOrder(sum(its.total for its in others), numbers))

    def was_picked(self, layout: Any, numbers: Tensor) -> bool:
        """Tell whether it is that of what was picked at some numbers, of a batch that is dealt in a way."""
        if self._made_by[:2] != (layout, "picked"):
            return False
        its: Tensor = self._made_by[2]
        return its.device == numbers.device and torch.equal(its, numbers)

    def _one(self, how: str, by: Any, total: int, make: Callable[[RowNumbers, Any], RowNumbers]) -> RowOrder:
        if by == 1:
            return self
        made_by = self, how, by
        return self._kept(made_by[1:], lambda: RowOrder(total, lambda rank: make(self.rows(rank), by).own, made_by))

    def _kept(self, key: Hashable, make: Callable[[], RowOrder]) -> RowOrder:
        """Give what was made of this order so before, as long as somebody has it."""
        made = self._derived.get(key)
        if made is None:
            made = self._derived[key] = make()
        return made

    def _undone(self, how: str, nothing: Any) -> tuple[RowOrder, Any]:
        """Of which order this was made so, and with which arguments; else itself."""
        return (self._made_by[0], self._made_by[2]) if self._made_by[1:2] == (how,) else (self, nothing)
