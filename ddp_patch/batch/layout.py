"""How the rows of a batch are dealt to the ranks."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch


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
class RowRuns:
    """Some of a batch's rows: runs of consecutive ones, by their first and their number, in each of equal pieces."""

    runs: tuple[tuple[int, int], ...]
    total: int
    pieces: int = 1  # of one size, side by side; the runs are those of the first

    @property
    def count(self) -> int:
        """How many they are."""
        return sum(count for _, count in self.runs) * self.pieces

    def before(self, row: int) -> int:
        """How many of them come before one of all rows."""
        of_piece = self.total // self.pieces
        whole, rest = divmod(row, of_piece) if of_piece else (0, 0)
        parts = sum(min(max(rest - start, 0), count) for start, count in self.runs)
        return whole * sum(count for _, count in self.runs) + parts

    def times(self, factor: int) -> RowRuns:
        """Every row became ``factor`` rows."""
        runs = tuple((start * factor, count * factor) for start, count in self.runs)
        return RowRuns(runs, self.total * factor, self.pieces)

    def at(self, place: RowPlacement) -> RowRuns:
        """The same rows in a result."""
        its = self.times(place.factor)
        return its if place.times == 1 else RowRuns(its.runs, its.total * place.times, its.pieces * place.times)

    def of(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """Take them from a tensor that has all rows: a view of one run, a copy of several."""
        views = self._views(tensor, dim)
        if len(views) == 1 and self.pieces == 1:
            return views[0]
        if tensor.is_contiguous() or 0 in tensor.stride():
            return torch.cat(views, dim) if self.pieces == 1 else views[0].flatten(dim, dim + 1)
        strides = tensor.stride()  # the copy lies in memory as the tensor does
        order = sorted(range(tensor.dim()), key=lambda at: -strides[at])
        taken = self.of(tensor.permute(order).contiguous(), order.index(dim))
        return taken.permute([order.index(at) for at in range(tensor.dim())])

    def put(self, rows: torch.Tensor, whole: torch.Tensor, dim: int) -> None:
        """Copy them to where they belong in the whole."""
        if self.pieces > 1:
            self._views(whole, dim)[0].copy_(rows.unflatten(dim, (self.pieces, -1)))
            return
        sizes = [count for _, count in self.runs]
        for view, run in zip(self._views(whole, dim), rows.split(sizes, dim), strict=True):
            view.copy_(run)

    def _views(self, tensor: torch.Tensor, dim: int) -> list[torch.Tensor]:
        if self.pieces > 1:
            tensor, dim = tensor.unflatten(dim, (self.pieces, -1)), dim + 1
        return [tensor.narrow(dim, start, count) for start, count in self.runs]


@dataclass(frozen=True, slots=True)
class Layout:
    """How one dimension of a global tensor is dealt: rank r holds ``counts[r]`` rows of it.

    They are consecutive, unless batches were joined along their rows, and each rank joined what it has of each: then
    ``pieces`` tells, in their order, how each of them is dealt. DTensor calls such a placement strided.
    """

    counts: tuple[int, ...]
    dim: int
    total: int
    pieces: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def deal(cls, rows: int, dim: int, size: int) -> Layout | None:
        """Deal rows in contiguous runs whose sizes differ by at most one; None if a rank would get none."""
        return None if rows < size else cls.evenly(rows, dim, size)

    @classmethod
    def evenly(cls, rows: int, dim: int, size: int) -> Layout:
        """Deal rows likewise, though they may be too few."""
        return cls(tuple(rows // size + (rank < rows % size) for rank in range(size)), dim, rows)

    @classmethod
    def joined(cls, layouts: Sequence[Layout], dim: int) -> Layout:
        """Lay batches end to end, each dealt as it is."""
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
        return self.counts == other.counts and self.pieces == other.pieces

    def at(self, dim: int) -> Layout:
        """The same rows along another dimension."""
        return self if dim == self.dim else Layout(self.counts, dim, self.total, self.pieces)

    def times(self, factor: int, dim: int) -> Layout:
        """Every row became ``factor`` rows."""
        if self.pieces:
            return Layout.of_pieces([tuple(count * factor for count in piece) for piece in self.pieces], dim)
        return Layout(tuple(count * factor for count in self.counts), dim, self.total * factor)

    def divided(self, factor: int, dim: int) -> Layout | None:
        """Every ``factor`` rows became one; None where that would cut across ranks."""
        if factor == 0 or any(count % factor for piece in (self.counts, *self.pieces) for count in piece):
            return None
        if self.pieces:
            return Layout.of_pieces([tuple(count // factor for count in piece) for piece in self.pieces], dim)
        return Layout(tuple(count // factor for count in self.counts), dim, self.total // factor)

    def repeated(self, times: int, dim: int) -> Layout:
        """All rows, several times over, as ``[T, B] -> [T*B]`` has them."""
        return Layout.of_pieces([*(self.pieces or (self.counts,))] * times, dim)

    def unrepeated(self, times: int, dim: int) -> Layout | None:
        """The way back, ``[T*B] -> [T, B]``; None where that is not what was joined."""
        each, rest = divmod(len(self.pieces), times)
        if rest or not each or self.pieces != self.pieces[:each] * times:
            return None
        return Layout.of_pieces(self.pieces[:each], dim)

    def part(self, start: int, stop: int, rank: int) -> tuple[Layout, int] | None:
        """Some of the batches that were joined, and which of a rank's rows is their first.

        Returns:
            None where they are cut, or where a rank has none of them.
        """
        edges = [0, *itertools.accumulate(map(sum, self.pieces))]
        if start >= stop or start not in edges or stop not in edges:
            return None
        first, last = edges.index(start), edges.index(stop)
        layout = Layout.of_pieces(self.pieces[first:last], self.dim)
        offset = sum(piece[rank] for piece in self.pieces[:first])
        return (layout, offset) if min(layout.counts) > 0 else None

    def rows(self, rank: int) -> RowRuns:
        """Which rows a rank holds."""
        return _rows(self.pieces, self.total, rank) if self.pieces else RowRuns((self.span(rank),), self.total)

    def span(self, rank: int) -> tuple[int, int]:
        """First row of a rank, and how many it holds, of a batch that was not joined."""
        assert not self.pieces
        return sum(self.counts[:rank]), self.counts[rank]


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
