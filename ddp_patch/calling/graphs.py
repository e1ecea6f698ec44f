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
from ..structure import map_leaves
from .argument_names import argument_names
from .calls import Call
from .graph_data import content_of, is_graph_batch, settings_of, tensors_by_path, with_tensors
from .graph_roles import BATCH, BOUNDS, EDGE_INDEX, WHOLE, Role, Roles, is_index, roles_of, starts_of
from .graph_units import EDGES, GRAPHS, NODES

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
        settings: tuple[tuple[str, Any], ...],
    ) -> None:
        """Know what each argument is.

        Args:
            call: that was made with it.
            items: tensors among its arguments, by path.
            roles: of them.
            starts: of each graph, and of one that would come next: its number, its first node and its first edge.
            layouts: of graphs, nodes and edges.
            settings: what a forward may branch on beside, by path.
        """
        self.layouts = layouts
        self._call = call
        self._roles = {id(items[path]): roles[path] for path in items}
        self.starts = starts
        self.magnitudes = starts[NODES][-1].bit_length(), starts[EDGES][-1].bit_length()
        self.form = tuple((path, _form(items[path], role)) for path, role in roles.items() if path in items) + settings

    def local(self, rank: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with a rank's graphs, through which gradients come back to what the script has whole."""
        first, count = self.layouts[GRAPHS].span(rank)

        def rows(tensor: Any, role: Role) -> Any:
            if isinstance(role, int) and isinstance(tensor, Tensor) and tensor.requires_grad:
                return shard(tensor, self.layouts[role])
            return replicate(tensor) if role == WHOLE else self._part(tensor, role, first, first + count)

        return self.with_tensors(rows, count)

    def with_tensors(
        self,
        take: Callable[[Any, Role], Any],
        count: int,
        made: list[tuple[Any, dict[str, Any]]] | None = None,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with other graphs.

        Args:
            take: gives what stands for a tensor, or for a list of an entry for each graph, by its role.
            count: graphs that there are then.
            made: to note objects of torch_geometric's, with what they hold.
        """

        def part(leaf: Any) -> Any:
            if type(leaf) is list:  # an entry for each graph
                return take(leaf, GRAPHS)
            if isinstance(leaf, Tensor) and id(leaf) in self._roles:
                return take(leaf, self._roles[id(leaf)])
            if not is_graph_batch(leaf):
                return leaf
            its = with_tensors(leaf, part)
            if made is not None:
                made.append((its, content_of(its)))
            return its

        def argument(name: str, value: Any) -> Any:
            is_count = name in _COUNTS and type(value) is int and value == self.layouts[GRAPHS].total
            return count if is_count else map_leaves(part, value, memo)

        memo: dict[int, Any] = {}
        names = argument_names(self._call.module, len(self._call.args))
        args = tuple(map(argument, names, self._call.args))
        return args, {name: argument(name, value) for name, value in self._call.kwargs.items()}

    def _part(self, tensor: Any, role: Role, first: int, stop: int) -> Any:
        _, nodes, edges = self.starts
        if role == WHOLE:
            return tensor
        if role == EDGE_INDEX:
            return tensor[:, edges[first] : edges[stop]] - nodes[first]
        if role == BATCH:
            return tensor[nodes[first] : nodes[stop]] - first
        if role == BOUNDS:
            return tensor[first : stop + 1] - nodes[first]
        starts = self.starts[int(role)]
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
            layouts, settings = _dealt(starts, size), _settings(call, len(starts[GRAPHS]) - 1)
            if layouts is None or settings is None:
                return None
            return Graphs(call, items, found, starts, layouts, settings)
    return None


def _items(call: Call) -> Iterator[tuple[str, Tensor]]:
    """Give a call's tensors, and those of objects of torch_geometric's, by path."""
    names = (*argument_names(call.module, len(call.args)), *call.kwargs)
    for name, value in zip(names, (*call.args, *call.kwargs.values()), strict=True):
        yield from tensors_by_path(value, name)


def _settings(call: Call, count: int) -> tuple[tuple[str, Any], ...] | None:
    """Give what objects of torch_geometric's hold that forwards may branch on; None where that is more than plain."""
    found: list[tuple[str, Any]] = []
    for path, leaf in call.leaves:
        if is_graph_batch(leaf):
            settings = settings_of(leaf, count)
            if settings is None:
                return None
            found += [(f"{path}.{key}", (type(value), value)) for key, value in settings]
    return tuple(found)


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


def _form(tensor: Tensor, role: Role) -> Any:
    sizes = tensor.shape[1:] if isinstance(role, int) else tensor.shape if role == WHOLE else ()
    return role, tensor.dtype, tensor.dim(), sizes, tensor.requires_grad and torch.is_grad_enabled()
