"""What a batch of graphs is counted in: graphs, nodes and edges, of which each rank has as many as its graphs have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..batch.row_numbers import RowRuns, Rows

GRAPHS, NODES, EDGES = range(3)


class UnitPlacement(NamedTuple):
    """Where a result has an entry for each graph, node or edge."""

    dim: int
    unit: int

    @property
    def size(self) -> int:
        """How many entries there are for each."""
        return 1


@dataclass(frozen=True, slots=True)
class GraphRows:
    """Some graphs of a batch. Stands where ``Rows`` do, when a trial is judged."""

    units: tuple[RowRuns, RowRuns, RowRuns]
    largest: tuple[int, int]  # nodes of the largest graph of the batch, and of these
    is_spoiled: bool = False  # the others are made of NaNs

    def at(self, place: UnitPlacement) -> RowRuns:
        """What of a result is theirs."""
        return self.units[place.unit]

    def places(self, dim: int, some: int, all_: int) -> Iterator[UnitPlacement]:
        """Give what a dimension may count, that is so long for them and so long for the batch."""
        for unit, runs in enumerate(self.units):
            if (some, all_) == (runs.count, runs.total):
                yield UnitPlacement(dim, unit)


AnyRows = Rows | GraphRows


def counts_of(rows: AnyRows) -> tuple[frozenset[int], frozenset[int]]:
    """Numbers of graphs, nodes and edges, which forwards ask indices for: in all, and of some; none of other rows."""
    if not isinstance(rows, GraphRows):
        return frozenset(), frozenset()
    all_, some = rows.largest
    return frozenset({all_, *(its.total for its in rows.units)}), frozenset({some, *(its.count for its in rows.units)})


def is_count(tensor: Tensor, counts: frozenset[int]) -> bool:
    """Tell whether what is read of indices is such a number, or the last index of so many."""
    if not counts or tensor.dtype is not torch.int64:
        return False
    value = int(tensor)
    return value in counts or value + 1 in counts


def constants_of(rows: AnyRows, tensor: Tensor, dim: int, count: int) -> Tensor | None:
    """Take from a tensor with a number for each row those of some rows; None if it has others.

    Args:
        rows: some of all.
        tensor: that may have a number for each of all.
        dim: where.
        count: how many are asked for.
    """
    for its in rows.units if isinstance(rows, GraphRows) else (rows,):
        if tensor.shape[dim] == its.total and count == its.count:
            return its.of(tensor, dim)
    return None


def are_of_rows(rows: AnyRows, all_: int, some: int) -> bool:
    """Tell whether of so many entries of all rows, so many are those of some rows."""
    for its in rows.units if isinstance(rows, GraphRows) else (rows,):
        if its.total and all_ % its.total == 0 and all_ * its.count == some * its.total:
            return True
    return False
