"""Averaging gradients outside DDP's pass: in flat parts, differentiably, and sparse; and aligning equal ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from ..batch.crossings import all_reduce
from ..batch.layout import Layout
from ..batch.world import World
from .grad_watch import grad_of, set_grad

_T = TypeVar("_T", bound=Tensor)
_AT_ONCE = 25 * 2**20  # bytes, DDP's own bucket size


def average_flat(parameters: list[nn.Parameter], world: World) -> None:
    """Average the gradients of parameters of one dtype and device in place. One all_reduce."""
    grads = [grad_of(parameter) for parameter in parameters]
    present = [grad is not None for grad in grads]
    like = parameters[0].detach()
    # Whoever has them all needs no other rank's flags: an accelerator would be waited for.
    flags = like.new_ones(len(present)) if all(present) else like.new_tensor(present)
    parts = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)]
    flat = torch.cat([*(part.detach().reshape(-1) for part in parts), flags])
    flat = world.all_reduce(flat)
    world.ledger.count("gradient average", flat.numel() * flat.element_size())
    used = present if all(present) else flat[-len(parameters) :].tolist()
    start = 0
    for parameter, grad, anywhere in zip(parameters, grads, used, strict=True):
        mean = flat[start : start + parameter.numel()].view_as(parameter) / world.size
        start += parameter.numel()
        if grad is not None:
            grad.detach().copy_(mean)
        elif anywhere:
            set_grad(parameter, mean)


def average_sparse(parameters: list[nn.Parameter], world: World) -> None:
    """Average gradients of ``nn.Embedding(sparse=True)``, which are dense where the weight serves elsewhere as well."""
    if not parameters:
        return
    means = _means_of_entries(list(parameters), [grad_of(parameter) for parameter in parameters], world)
    for parameter, mean in zip(parameters, means, strict=True):
        if mean is not None:  # on no rank: one process would have left it None
            set_grad(parameter, mean)


_NONE, _DENSE = -1, -2


def _means_of_entries(sources: Sequence[Tensor], values: Sequence[Tensor | None], world: World) -> list[Tensor | None]:
    """Average sparse gradients: every rank gets all ranks' entries. One that is dense on some rank is so on all."""
    if not sources:
        return []
    found = [value.coalesce() if value is not None and value.is_sparse else value for value in values]
    counts = torch.zeros(len(found), world.size, dtype=torch.long, device=world.device)
    counts[:, world.rank] = counts.new_tensor([_entries_in(value) for value in found])
    means: list[Tensor | None] = []
    for source, local, of_ranks in zip(sources, found, world.all_reduce(counts).tolist(), strict=True):
        if _DENSE in of_ranks:
            part = torch.zeros_like(source) if local is None else local.to_dense()
            means.append(world.all_reduce(part.detach().contiguous()) / world.size)
            continue
        if max(of_ranks) == _NONE:
            means.append(None)
            continue
        layout = Layout(tuple(max(0, count) for count in of_ranks), 0, sum(max(0, count) for count in of_ranks))
        if local is None:
            nowhere = torch.zeros(1, 0, dtype=torch.long, device=source.device)
            local = _sparse(nowhere, source.new_zeros(0, *source.shape[1:]), source)
        if layout.total > 0:
            indices = world.all_gather_rows(local.indices().t().contiguous(), layout).t()
            entries = world.all_gather_rows(local.values(), layout) / world.size
            local = _sparse(indices, entries, source)
        means.append(local.detach())
    return means


def _sparse(indices: Tensor, entries: Tensor, like: Tensor) -> Tensor:
    made = torch.sparse_coo_tensor(indices, entries, like.shape, device=like.device, check_invariants=False)
    return made.coalesce()


def _entries_in(grad: Tensor | None) -> int:
    return _NONE if grad is None else grad._nnz() if grad.is_sparse else _DENSE


def average(sources: Sequence[Tensor], values: Sequence[Tensor | None], world: World) -> list[Tensor | None]:
    """Average gradients over the ranks, differentiably; None stays None where no rank has one.

    Args:
        sources: what the gradients are of.
        values: this rank's gradients.
        world: the ranks.
    """
    kinds = [
        (value is not None, value is not None and value.is_sparse, value is not None and value.requires_grad)
        for value in values
    ]
    used = world.all_reduce(torch.tensor(kinds, dtype=torch.float, device=world.device)).tolist() if kinds else []
    means: list[Tensor | None] = [None] * len(sources)
    # Entries travel without their graph: what has one is averaged whole.
    in_entries = [index for index, (_, is_sparse, has_graph) in enumerate(used) if is_sparse and not has_graph]
    entries = _means_of_entries([sources[i] for i in in_entries], [values[i] for i in in_entries], world)
    for index, mean in zip(in_entries, entries, strict=True):
        means[index] = mean
    indices = [index for index, (anywhere, *_) in enumerate(used) if anywhere and index not in in_entries]
    selected = [values[index] for index in indices]
    parts = [value.to_dense() if value is not None and value.is_sparse else value for value in selected]
    wanted = [torch.zeros_like(sources[i]) if part is None else part for i, part in zip(indices, parts, strict=True)]
    for index, mean in zip(indices, means_of(wanted, world, recorded=True), strict=True):
        means[index] = mean.to_sparse(1) if used[index][1] else mean
    return means


def means_of(values: list[Tensor], world: World, recorded: bool) -> list[Tensor]:
    """Average tensors over the ranks, which have all of them; one all_reduce for 25 MB of one dtype and device.

    Args:
        values: this rank's.
        world: the ranks.
        recorded: differentiably.
    """
    means: dict[int, Tensor] = {}
    for part in in_buckets(values):
        flat = torch.cat([value.reshape(-1) for value in part])
        flat = (all_reduce(flat) if recorded else world.all_reduce(flat)) / world.size
        for value, piece in zip(part, flat.split([value.numel() for value in part]), strict=True):
            means[id(value)] = piece.view(value.shape).clone()  # the script may write to it
    return [means[id(value)] for value in values]


def align(parameters: Sequence[nn.Parameter | Tensor], world: World) -> None:
    """Give gradients that every rank computed by itself the digits that rank 0 got. One broadcast for 25 MB."""
    grads = [grad for grad in map(grad_of, parameters) if grad is not None and not grad.is_sparse]
    for part in in_buckets(grads):
        flat = world.broadcast(torch.cat([grad.detach().reshape(-1) for grad in part]))
        for grad, piece in zip(part, flat.split([grad.numel() for grad in part]), strict=True):
            grad.detach().copy_(piece.view_as(grad))


def in_buckets(parameters: Sequence[_T]) -> Iterator[list[_T]]:
    """Tensors of one dtype and device, as many as are averaged at once."""
    kinds: dict[tuple[torch.dtype, torch.device], list[_T]] = {}
    for parameter in parameters:
        kinds.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    for same in kinds.values():
        part: list[_T] = []
        size = 0
        for parameter in same:
            part.append(parameter)
            size += parameter.numel() * parameter.element_size()
            if size >= _AT_ONCE:
                yield part
                part, size = [], 0
        if part:
            yield part
