"""Batches of graphs for trials: a few graphs beside others, whose features and sizes are changed.

What a forward computes for some graphs must not depend on the others, whatever these are. So the others are made of
NaNs, of large numbers and of zeros, and are joined to a graph of many nodes, in which each edge is there twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..batch.row_numbers import RowRuns
from ..calling.graph_roles import BATCH, BOUNDS, EDGE_INDEX, WHOLE, Role
from ..calling.graph_units import EDGES, GRAPHS, NODES, GraphRows
from ..calling.graphs import Graphs
from ..calling.rows import Arguments

_FEW = 2  # graphs that are tried: of a single one, a forward may make something else
_TURNED = "turned"  # of what edges join
_CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "nan": lambda features: torch.full_like(features, torch.nan),
    "large": lambda features: features * 1e6,
    "zero": torch.zeros_like,
    "positive": torch.abs,
    "negative": lambda features: -features.abs(),
}


class Block(NamedTuple):
    """Some graphs of a batch, one after the other."""

    first: int
    stop: int
    change: str = ""  # of their features, or their edges
    joined: int = 0  # they are one graph, so many times over, with each edge twice


class Trial(NamedTuple):
    """What a trial is given."""

    whole: Arguments
    part: Arguments
    rows: GraphRows  # which these are


class GraphTrials:
    """The trials that tell whether the graphs of a call may be dealt."""

    def __init__(self, graphs: Graphs) -> None:
        """Make none yet."""
        self._graphs = graphs
        self._starts = graphs.starts
        self._given: list[tuple[Any, dict[str, Any]]] = []  # objects of torch_geometric's that trials got

    def of_few(self) -> Iterator[Trial]:
        """Give those that cost little, the same on every rank."""
        total = self._graphs.layouts[GRAPHS].total
        first, stop = 1, min(1 + _FEW, total)
        before, after = Block(0, first), Block(stop, min(stop + 1, total))
        yield self._trial([before], Block(first, stop), [after])
        for change in ("", "nan", "large", "zero"):
            others = Block(0, first, change, joined=1)
            yield self._trial([others], Block(first, stop), [others])
        for change in ("positive", "negative", _TURNED):
            yield self._trial([before], Block(first, stop, change), [before])

    def of_all(self, rank: int) -> Trial:
        """Give one of all graphs, and of more than there are: a forward may branch on how many nodes there are."""
        total, (first, count) = self._graphs.layouts[GRAPHS].total, self._graphs.layouts[GRAPHS].span(rank)
        more = self._graphs.layouts[GRAPHS].counts[0]
        lacking = [(1 << bits) - its[-1] for bits, its in zip(self._graphs.magnitudes, self._starts[1:], strict=True)]
        gained = self._starts[NODES][more], 2 * self._starts[EDGES][more]
        times = max(-(-lack // gain) for lack, gain in zip(lacking, gained, strict=True))
        after = [Block(first + count, total), Block(0, more, joined=times)]
        return self._trial([Block(0, first)], Block(first, first + count), after)

    def were_written_to(self) -> bool:
        """Tell whether a trial has put something into an object of torch_geometric's."""
        return any(not _holds(its.to_dict(), held) for its, held in self._given)

    def _trial(self, before: list[Block], own: Block, after: list[Block]) -> Trial:
        before, after = [[block for block in blocks if block.first < block.stop] for blocks in (before, after)]
        blocks = [*before, own, *after]
        sizes = [[self._size(block, unit) for block in blocks] for unit in (GRAPHS, NODES, EDGES)]
        graphs, nodes, edges = (RowRuns(((sum(its[: len(before)]), its[len(before)]),), sum(its)) for its in sizes)
        largest = max(map(self._largest, blocks)), self._largest(own)
        rows = GraphRows((graphs, nodes, edges), largest, any(block.change == "nan" for block in blocks))
        return Trial(self._arguments(blocks), self._arguments([own]), rows)

    def _size(self, block: Block, unit: int) -> int:
        if not block.joined:
            return self._starts[unit][block.stop] - self._starts[unit][block.first]
        times = {GRAPHS: 0, NODES: block.joined, EDGES: 2 * block.joined}[unit]
        return times * self._size(block._replace(joined=0), unit) if times else 1

    def _largest(self, block: Block) -> int:
        if block.joined:
            return self._size(block, NODES)
        starts = self._starts[NODES][block.first : block.stop + 1]
        return max(after - before for before, after in itertools.pairwise(starts))

    def _arguments(self, blocks: Sequence[Block]) -> Arguments:
        def made(tensor: Any, role: Role) -> Any:
            if isinstance(tensor, list):
                return [
                    item
                    for block in blocks
                    for item in tensor[block.first : block.first + 1 if block.joined else block.stop]
                ]
            its = tensor if role == WHOLE else self._made(tensor.detach(), role, blocks)
            return its.detach().clone().requires_grad_(tensor.requires_grad)

        count = sum(self._size(block, GRAPHS) for block in blocks)
        return self._graphs.with_tensors(made, count, self._given)

    def _made(self, tensor: Tensor, role: Role, blocks: Sequence[Block]) -> Tensor:
        if isinstance(role, int):
            varied = _varied(tensor)
            return torch.cat([self._rows(varied, role, block) for block in blocks])
        pieces, graph, node = [], 0, 0
        for block in blocks:
            first, edges = self._starts[NODES][block.first], slice(*(self._starts[EDGES][at] for at in block[:2]))
            if role == EDGE_INDEX:
                its = self._turned(tensor[:, edges], block) if block.change == _TURNED else tensor[:, edges]
                pieces.append(self._numbered(its - first + node, block))
            elif role == BATCH:
                its = tensor[first : self._starts[NODES][block.stop]] - block.first + graph
                pieces.append(torch.full_like(its, graph).repeat(block.joined) if block.joined else its)
            else:
                assert role == BOUNDS
                pieces.append(tensor[block.first : block.first + 1 if block.joined else block.stop] - first + node)
            graph, node = graph + self._size(block, GRAPHS), node + self._size(block, NODES)
        if role == BOUNDS:
            pieces.append(tensor.new_tensor([node]))
        return torch.cat(pieces, -1)

    def _rows(self, tensor: Tensor, unit: int, block: Block) -> Tensor:
        its = tensor[self._starts[unit][block.first] : self._starts[unit][block.stop]]
        if block.change in _CHANGES and its.is_floating_point():
            its = _CHANGES[block.change](its)
        if not block.joined:
            return its
        times = block.joined * (2 if unit == EDGES else 1)
        return its[:1] if unit == GRAPHS else its.repeat(times, *[1] * (its.dim() - 1))

    def _turned(self, edges: Tensor, block: Block) -> Tensor:
        """Join the last nodes of each graph as the first ones were."""
        starts = self._starts[NODES][block.first : block.stop + 1]
        numbers = [start + stop - 1 - node for start, stop in itertools.pairwise(starts) for node in range(start, stop)]
        return edges.new_tensor(numbers)[edges - starts[0]].flip(0)

    def _numbered(self, edges: Tensor, block: Block) -> Tensor:
        if not block.joined:
            return edges
        nodes = self._size(block, NODES) // block.joined
        copies = torch.arange(block.joined, device=edges.device).repeat_interleave(2 * edges.shape[1])
        return edges.repeat(1, 2 * block.joined) + copies * nodes


def _holds(now: dict[str, Any], before: dict[str, Any]) -> bool:
    if now.keys() != before.keys():
        return False
    return all(now[key] == value if type(value) is list else now[key] is value for key, value in before.items())


def _varied(features: Tensor) -> Tensor:
    """Give features other values where all rows have the same: behind a constant, all look alike."""
    if not features.is_floating_point() or not features.numel():
        return features
    rows = features.flatten(1) if features.dim() > 1 else features[:, None]
    is_constant = rows.amin(0) == rows.amax(0)
    steps = torch.arange(rows.numel(), dtype=rows.dtype, device=rows.device).view_as(rows)
    return torch.where(is_constant, rows + 0.05 * steps.cos(), rows).view_as(features)
