"""How the rows of a batch are dealt to the ranks."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .row_numbers import RowRuns, Rows
from .row_order import RowOrder


class RowPlacement(NamedTuple):
    """Where a result has the rows of a batch: a dimension, entries of each row there, how often all come in turn."""

    dim: int
    factor: int = 1
    times: int = 1  # [T, B] -> [T*B]

    @property
    def size(self) -> int:
        """How many entries there are for each row."""
        return self.factor * self.times

    def of(self, layout: Layout) -> Layout:
        """How the result is dealt, if the batch is as this says."""
        its = layout.at(self.dim) if self.factor == 1 else layout.times(self.factor, self.dim)
        return its if self.times == 1 else its.repeated(self.times, self.dim)

    @classmethod
    def among(cls, layout: Layout, its: Layout) -> RowPlacement | None:
        """Find the place by which a batch's layout is that of a result; None if its rows are others."""
        size = its.total // layout.total
        places = (cls(its.dim, size), cls(its.dim, 1, size)) if size else ()
        return next((place for place in places if place.of(layout) == its), None)


@dataclass(frozen=True, slots=True)
class Layout:
    """How one dimension of a global tensor is dealt: rank r holds ``counts[r]`` rows of it.

    They are consecutive, unless batches were joined along their rows, and each rank joined what it has of each: then
    ``pieces`` tells, in their order, how each of them is dealt. DTensor calls such a placement strided. Rows that were
    sorted have an ``order``, by which they are whose they were before.
    """

    counts: tuple[int, ...]
    dim: int
    total: int
    pieces: tuple[tuple[int, ...], ...] = ()
    order: RowOrder | None = None

    @classmethod
    def deal(cls, rows: int, dim: int, size: int) -> Layout | None:
        """Deal rows in contiguous runs whose sizes differ by at most one; None if a rank would get none."""
        return None if rows < size else cls.evenly(rows, dim, size)

    @classmethod
    @functools.lru_cache(maxsize=1024)  # one for all batches of a size: equal at a glance
    def evenly(cls, rows: int, dim: int, size: int) -> Layout:
        """Deal rows likewise, though they may be too few."""
        return cls(_even_counts(rows, size), dim, rows)

    @classmethod
    def joined(cls, layouts: Sequence[Layout], dim: int) -> Layout:
        """Lay batches end to end, each dealt as it is."""
        if order := next((layout.order for layout in layouts if layout.order is not None), None):
            counts = tuple(map(sum, zip(*(layout.counts for layout in layouts), strict=True)))
            return cls(counts, dim, sum(counts), (), order.joined(layouts))
        return cls.of_pieces([piece for layout in layouts for piece in layout.pieces or (layout.counts,)], dim)

    @classmethod
    def of_pieces(cls, pieces: Sequence[tuple[int, ...]], dim: int) -> Layout:
        """Lay pieces end to end, each of which is dealt in its own way."""
        if len(pieces) == 1:
            return cls(pieces[0], dim, sum(pieces[0]))
        counts = tuple(map(sum, zip(*pieces, strict=True)))
        return cls(counts, dim, sum(counts), tuple(pieces))

    def lies_as(self, other: Layout) -> bool:
        """Tell whether every rank holds the same rows of both, in whichever dimension."""
        return self.counts == other.counts and self.pieces == other.pieces and self.order is other.order

    @property
    def is_consecutive(self) -> bool:
        """Whether each rank's rows are one run."""
        return not self.pieces and self.order is None

    def at(self, dim: int) -> Layout:
        """The same rows along another dimension."""
        return self if dim == self.dim else Layout(self.counts, dim, self.total, self.pieces, self.order)

    def times(self, factor: int, dim: int) -> Layout:
        """Every row became ``factor`` rows."""
        if self.pieces:
            return Layout.of_pieces([tuple(count * factor for count in piece) for piece in self.pieces], dim)
        if self.order is not None:
            return self._in_order(self.order.times(factor), dim)
        return Layout(tuple(count * factor for count in self.counts), dim, self.total * factor)

    def divided(self, factor: int, dim: int) -> Layout | None:
        """Every ``factor`` rows became one; None where that would cut across ranks."""
        if factor == 0 or any(count % factor for piece in (self.counts, *self.pieces) for count in piece):
            return None
        if self.order is not None:
            order = self.order.divided(factor)
            return None if order is None else self._in_order(order, dim)
        if self.pieces:
            return Layout.of_pieces([tuple(count // factor for count in piece) for piece in self.pieces], dim)
        return Layout(tuple(count // factor for count in self.counts), dim, self.total // factor)

    def repeated(self, times: int, dim: int) -> Layout:
        """All rows, several times over, as ``[T, B] -> [T*B]`` has them."""
        if self.order is not None:
            return self._in_order(self.order.repeated(times), dim)
        return Layout.of_pieces([*(self.pieces or (self.counts,))] * times, dim)

    def unrepeated(self, times: int, dim: int) -> Layout | None:
        """The way back, ``[T*B] -> [T, B]``; None where that is not what was joined."""
        if self.order is not None:
            order = self.order.unrepeated(times)
            return None if order is None else self._in_order(order, dim)
        each, rest = divmod(len(self.pieces), times)
        if rest or not each or self.pieces != self.pieces[:each] * times:
            return None
        return Layout.of_pieces(self.pieces[:each], dim)

    def part(self, start: int, stop: int, rank: int) -> tuple[Layout, int] | None:
        """Some rows, and which of a rank's is their first: of batches that were joined, or of another order.

        Returns:
            None where what was joined is cut, or where a rank has none of them.
        """
        if self.order is not None:
            order = self.order.part(start, stop)
            counts = tuple(order.rows(rank).count for rank in range(len(self.counts)))
            if min(counts) == 0:
                return None
            return Layout(counts, self.dim, stop - start, (), order), self.rows(rank).before(start)
        edges = [0, *itertools.accumulate(map(sum, self.pieces))]
        if start >= stop or start not in edges or stop not in edges:
            return None
        first, last = edges.index(start), edges.index(stop)
        layout = Layout.of_pieces(self.pieces[first:last], self.dim)
        offset = sum(piece[rank] for piece in self.pieces[:first])
        return (layout, offset) if min(layout.counts) > 0 else None

    def _in_order(self, order: RowOrder, dim: int) -> Layout:
        """What was made of rows of an order, which has more or fewer for each."""
        counts = tuple(count * order.total // self.total for count in self.counts)
        return Layout(counts, dim, order.total, (), order)

    def rows(self, rank: int) -> Rows:
        """Which rows a rank holds."""
        if self.order is not None:
            return self.order.rows(rank)
        return _rows(self.pieces, self.total, rank) if self.pieces else RowRuns((self.span(rank),), self.total)

    def span(self, rank: int) -> tuple[int, int]:
        """First row of a rank, and how many it holds, of a batch that was not joined."""
        assert self.is_consecutive
        return sum(self.counts[:rank]), self.counts[rank]


@functools.lru_cache(maxsize=64)
def _even_counts(rows: int, size: int) -> tuple[int, ...]:
    return tuple(rows // size + (rank < rows % size) for rank in range(size))


@functools.lru_cache(maxsize=64)
def _rows(pieces: tuple[tuple[int, ...], ...], total: int, rank: int) -> RowRuns:
    first, times = pieces[0], len(pieces)
    if pieces == (first,) * times:
        return RowRuns(((sum(first[:rank]), first[rank]),), total, times)
    runs, place = [], 0
    for piece in pieces:
        runs.append((place + sum(piece[:rank]), piece[rank]))
        place += sum(piece)
    return RowRuns(tuple(run for run in runs if run[1]), total)
