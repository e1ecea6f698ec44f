"""Batches of graphs: many small ones as a large one, as torch_geometric's loader makes them, and others after it.

Nodes stand graph by graph and so do edges, ``edge_index`` ``[2, E]`` numbers the nodes that each edge joins, and a
vector ``batch`` ``[N]`` tells of which graph each node is. A row is a graph: each rank gets some, numbered from 0 on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..batch.crossings import replicate, shard
from ..batch.layout import Layout
from ..batch.row_numbers import RowRuns
from ..structure import map_leaves
from .argument_names import argument_names
from .calls import Call
from .graph_data import is_graph_batch, tensors_by_path, with_tensors
from .graph_roles import BATCH, BOUNDS, EDGE_INDEX, WHOLE, Role, Roles, is_index, roles_of, starts_of
from .graph_units import GRAPHS, NODES, GraphRows

_COUNTS = {"batch_size", "dim_size", "num_graphs", "size"}  # names of numbers that are as many as there are graphs


class Graphs:
    """The batch of graphs among the arguments of a call."""

    def __init__(
        self,
        call: Call,
        items: dict[str, Tensor],
        roles: dict[str, Role],
        starts: list[list[int]],
        layouts: tuple[Layout, Layout, Layout],
    ) -> None:
        """Know what each argument is.

        Args:
            call: that was made with it.
            items: tensors among its arguments, by path.
            roles: of them.
            starts: of each graph, and of one that would come next: its number, its first node and its first edge.
            layouts: of graphs, nodes and edges.
        """
        self.layouts = layouts
        self._call = call
        self._roles = {id(items[path]): roles[path] for path in items}
        self._starts = starts
        self.form = tuple((path, (role, _form(items[path]))) for path, role in roles.items() if path in items)
        self._tried: list[tuple[Any, dict[str, Any]]] = []  # objects of torch_geometric's that a trial was given

    def local(self, rank: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with a rank's graphs, through which gradients come back to what the script has whole."""
        first, count = self.layouts[GRAPHS].span(rank)

        def rows(tensor: Tensor, role: Role) -> Tensor:
            if tensor.requires_grad and isinstance(role, int):
                return shard(tensor, self.layouts[role])
            return replicate(tensor) if role == WHOLE else self._part(tensor, role, first, first + count)

        return self._with(rows, count)

    def some(self, first: int, stop: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Copies of the arguments with some of the graphs, for a trial: features that are constant vary."""

        def part(tensor: Tensor, role: Role) -> Tensor:
            its = self._part(_varied(tensor, role), role, first, stop).detach().clone()
            return its.requires_grad_(tensor.requires_grad)

        return self._with(part, stop - first, self._tried)

    def were_written_to(self) -> bool:
        """Tell whether a trial has put something into an object of torch_geometric's, or written to what it holds."""
        return any(
            its.to_dict().keys() != held.keys()
            or any(value is not its[key] or getattr(value, "_version", 0) for key, value in held.items())
            for its, held in self._tried
        )

    def rows(self, first: int, stop: int, of_first: int, of_stop: int) -> GraphRows:
        """Which of some graphs others are."""
        graphs, nodes, edges = (
            RowRuns(((s[first] - s[of_first], s[stop] - s[first]),), s[of_stop] - s[of_first]) for s in self._starts
        )
        return GraphRows((graphs, nodes, edges), (self._largest(of_first, of_stop), self._largest(first, stop)))

    def _largest(self, first: int, stop: int) -> int:
        return max(after - before for before, after in itertools.pairwise(self._starts[NODES][first : stop + 1]))

    def _with(
        self,
        take: Callable[[Tensor, Role], Tensor],
        count: int,
        made: list[tuple[Any, dict[str, Any]]] | None = None,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        def part(leaf: Any) -> Any:
            if isinstance(leaf, Tensor) and id(leaf) in self._roles:
                return take(leaf, self._roles[id(leaf)])
            if not is_graph_batch(leaf):
                return leaf
            its = with_tensors(leaf, part)
            if made is not None:
                made.append((its, its.to_dict()))
            return its

        def argument(name: str, value: Any) -> Any:
            is_count = name in _COUNTS and type(value) is int and value == self.layouts[GRAPHS].total
            return count if is_count else map_leaves(part, value, memo)

        memo: dict[int, Any] = {}
        names = argument_names(self._call.module, len(self._call.args))
        args = tuple(map(argument, names, self._call.args))
        return args, {name: argument(name, value) for name, value in self._call.kwargs.items()}

    def _part(self, tensor: Tensor, role: Role, first: int, stop: int) -> Tensor:
        _, nodes, edges = self._starts
        if role == WHOLE:
            return tensor
        if role == EDGE_INDEX:
            return tensor[:, edges[first] : edges[stop]] - nodes[first]
        if role == BATCH:
            return tensor[nodes[first] : nodes[stop]] - first
        if role == BOUNDS:
            return tensor[first : stop + 1] - nodes[first]
        starts = self._starts[int(role)]
        return tensor[starts[first] : starts[stop]]


def graphs_of(call: Call, roles: Roles, size: int) -> Graphs | None:
    """Find the batch of graphs that a call is given; None if it is given none, or some rank would get no edge of it.

    Args:
        call: of a module.
        roles: what its arguments were before.
        size: how many ranks there are.
    """
    if call.module.training in roles.refused:
        return None
    items = dict(_items(call))
    indices = [path for path, tensor in items.items() if is_index(tensor)]
    if len(indices) != 1 or any(isinstance(tensor, Tensor) and type(tensor) is not Tensor for tensor in items.values()):
        return None
    (edge_index,) = indices
    vectors = [path for path, tensor in items.items() if tensor.dim() == 1 and tensor.dtype is torch.int64]
    for batch in sorted(vectors, key=lambda path: BATCH not in path):
        if roles.known.get(batch, BATCH) != BATCH:
            continue
        starts = starts_of(items[edge_index], items[batch])
        if starts is not None:
            found = roles_of(items, edge_index, batch, starts, roles.known)
            if found is None:
                return None
            roles.known.update(found)
            layouts = _dealt(starts, size)
            return None if layouts is None else Graphs(call, items, found, starts, layouts)
    return None


def _items(call: Call) -> Iterator[tuple[str, Tensor]]:
    """Give a call's tensors, and those of objects of torch_geometric's, by path."""
    names = (*argument_names(call.module, len(call.args)), *call.kwargs)
    for name, value in zip(names, (*call.args, *call.kwargs.values()), strict=True):
        yield from tensors_by_path(value, name)


def _dealt(starts: list[list[int]], size: int) -> tuple[Layout, Layout, Layout] | None:
    """Deal graphs, with their nodes and edges, one after the other."""
    layout = Layout.deal(len(starts[GRAPHS]) - 1, 0, size)
    if layout is None:
        return None
    ends = [0, *itertools.accumulate(layout.counts)]
    graphs, nodes, edges = (
        Layout(tuple(its[stop] - its[start] for start, stop in itertools.pairwise(ends)), 0, its[-1]) for its in starts
    )
    return (graphs, nodes, edges) if min(edges.counts) else None


def _varied(tensor: Tensor, role: Role) -> Tensor:
    """Give features other values where all rows have the same: behind a constant, all look alike."""
    if not isinstance(role, int) or not tensor.is_floating_point() or not tensor.numel():
        return tensor
    rows = tensor.detach().flatten(1) if tensor.dim() > 1 else tensor.detach()[:, None]
    is_constant = rows.amin(0) == rows.amax(0)
    steps = torch.arange(rows.numel(), dtype=rows.dtype, device=rows.device).view_as(rows)
    return torch.where(is_constant, rows + 0.05 * steps.cos(), rows).view_as(tensor)


def _form(tensor: Tensor) -> Any:
    return tensor.dtype, tensor.dim(), tensor.requires_grad and torch.is_grad_enabled()
