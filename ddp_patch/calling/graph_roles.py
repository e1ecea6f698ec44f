"""What the tensors of a batch of graphs are: which number its nodes, and which have an entry for each of what."""

from __future__ import annotations

import torch
from torch import Tensor

from .graph_units import EDGES, GRAPHS, NODES

EDGE_INDEX, BATCH, BOUNDS, WHOLE = "edge_index", "batch", "ptr", "whole"
Role = int | str  # an entry for each graph, node or edge; or one of those above


class Roles:
    """What each argument of a module's calls is, by path: an edge's weights stay that where there are as many nodes."""

    def __init__(self) -> None:
        """Know of none yet."""
        self.known: dict[str, Role] = {}
        self.refused: set[bool] = set()  # in training or not: its calls are not dealt by graphs


def is_index(tensor: Tensor) -> bool:
    """Tell a tensor that may number the nodes that each edge joins."""
    return tensor.dtype is torch.int64 and tensor.dim() == 2 and tensor.shape[0] == 2


def starts_of(edge_index: Tensor, batch: Tensor) -> list[list[int]] | None:
    """Number graphs, nodes and edges where each graph begins, and the next one would; None where that is not so."""
    numbers = torch.cat([batch.detach(), edge_index.detach().flatten()]).cpu()  # a device is waited for once
    of_nodes, ends = numbers[: len(batch)], numbers[len(batch) :].view(2, -1)
    if not len(of_nodes):
        return None
    steps, nodes = of_nodes.diff(), ends.clamp(0, len(of_nodes) - 1)
    of_edges, of_targets = of_nodes[nodes]
    graph_by_graph = [of_nodes[0] == 0, ((steps == 0) | (steps == 1)).all(), (of_edges.diff() >= 0).all()]
    none_between = [(nodes == ends).all(), (of_edges == of_targets).all()]
    *are_so, last = torch.stack([*graph_by_graph, *none_between, of_nodes[-1]]).tolist()
    if not all(are_so):
        return None
    counts = torch.stack([torch.bincount(of, minlength=last + 1) for of in (of_nodes, of_edges)])
    return [list(range(last + 2)), *([0, *sums] for sums in counts.cumsum(1).tolist())]


def roles_of(
    items: dict[str, Tensor], edge_index: str, batch: str, starts: list[list[int]], known: dict[str, Role]
) -> dict[str, Role] | None:
    """Tell what each tensor is; None where that cannot be told, or where it is not what it was before."""
    roles: dict[str, Role] = {}
    for path, tensor in items.items():
        if path in (edge_index, batch):
            role: Role | None = EDGE_INDEX if path == edge_index else BATCH
        else:
            role = _role(tensor, starts, known.get(path))
        if role is None or known.get(path, role) != role:
            return None
        roles[path] = role
    return roles if NODES in roles.values() else None


def _role(tensor: Tensor, starts: list[list[int]], known: Role | None) -> Role | None:
    length = tensor.shape[0] if tensor.dim() else -1
    units = [unit for unit in (GRAPHS, NODES, EDGES) if starts[unit][-1] == length]
    if known is not None:
        is_so = known in units or (known == WHOLE and not units) or (known == BOUNDS and length == len(starts[NODES]))
        return known if is_so else None
    if tensor.dtype is torch.int64 and tensor.dim() == 1 and tensor.tolist() == starts[NODES]:
        return BOUNDS
    if not units:
        return WHOLE
    return units[0] if len(units) == 1 else None
