"""Averaging gradients outside DDP's pass: in flat parts, differentiably, and sparse; and aligning equal ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from ..batch.crossings import all_reduce
from ..batch.layout import Layout
from ..batch.world import World
from .watch import grad_of, set_grad

_T = TypeVar("_T", bound=Tensor)
_AT_ONCE = 25 * 2**20  # bytes, DDP's own bucket size


def average_flat(parameters: list[nn.Parameter], world: World) -> None:
    """Average the gradients of parameters of one dtype and device in place. One all_reduce."""
    grads = [grad_of(parameter) for parameter in parameters]
    held = [grad is not None for grad in grads]
    like = parameters[0].detach()
    # Whoever has them all needs no other rank's flags: an accelerator would be waited for.
    flags = like.new_ones(len(held)) if all(held) else like.new_tensor(held)
    parts = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)]
    flat = torch.cat([*(part.detach().reshape(-1) for part in parts), flags])
    flat = world.all_reduce(flat)
    world.ledger.count("gradient average", flat.numel() * flat.element_size())
    used = held if all(held) else flat[-len(parameters) :].tolist()
    start = 0
    for parameter, grad, anywhere in zip(parameters, grads, used, strict=True):
        mean = flat[start : start + parameter.numel()].view_as(parameter) / world.size
        start += parameter.numel()
        if grad is not None:
            grad.detach().copy_(mean)
        elif anywhere:
            set_grad(parameter, mean)


def average_sparse(parameters: list[nn.Parameter], world: World) -> None:
    """Average gradients of ``nn.Embedding(sparse=True)``: every rank gets all ranks' entries."""
    if not parameters:
        return
    found = [_entries(grad_of(parameter)) for parameter in parameters]
    counts = torch.zeros(len(found), world.size, dtype=torch.long, device=world.device)
    counts[:, world.rank] = torch.tensor([-1 if own is None else own._nnz() for own in found])
    for parameter, own, of_ranks in zip(parameters, found, world.all_reduce(counts).tolist(), strict=True):
        if max(of_ranks) < 0:
            continue  # on no rank: one process would have left it None
        layout = Layout(tuple(max(0, count) for count in of_ranks), 0, sum(max(0, count) for count in of_ranks))
        if own is None:
            nowhere = torch.zeros(1, 0, dtype=torch.long, device=parameter.device)
            own = torch.sparse_coo_tensor(nowhere, parameter.new_zeros(0, *parameter.shape[1:]), parameter.shape)
            own = own.coalesce()
        if layout.total == 0:
            set_grad(parameter, own)
            continue
        indices = world.all_gather_rows(own.indices().t().contiguous(), layout).t()
        values = world.all_gather_rows(own.values(), layout) / world.size
        set_grad(parameter, torch.sparse_coo_tensor(indices, values, parameter.shape).coalesce())


def _entries(grad: Tensor | None) -> Tensor | None:
    return None if grad is None else (grad if grad.is_sparse else grad.to_sparse(1)).coalesce()


def average(sources: Sequence[Tensor], values: Sequence[Tensor | None], world: World) -> list[Tensor | None]:
    """Average gradients over the ranks, differentiably; None stays None where no rank has one.

    Args:
        sources: what the gradients are of.
        values: this rank's gradients.
        world: the ranks.
    """
    flags = torch.tensor([float(value is not None) for value in values], device=world.device)
    used = world.all_reduce(flags).tolist()
    means: list[Tensor | None] = [None] * len(sources)
    indices = [index for index, anywhere in enumerate(used) if anywhere]
    parts = [values[index] for index in indices]
    wanted = [torch.zeros_like(sources[i]) if part is None else part for i, part in zip(indices, parts, strict=True)]
    for index, mean in zip(indices, means_of(wanted, world, recorded=True), strict=True):
        means[index] = mean
    return means


def means_of(values: list[Tensor], world: World, recorded: bool) -> list[Tensor]:
    """Average tensors over the ranks, which have all of them; one all_reduce for 25 MB of one dtype and device.

    Args:
        values: this rank's.
        world: the ranks.
        recorded: differentiably.
    """
    means: dict[int, Tensor] = {}
    for part in in_parts(values):
        flat = torch.cat([value.reshape(-1) for value in part])
        flat = (all_reduce(flat) if recorded else world.all_reduce(flat)) / world.size
        for value, piece in zip(part, flat.split([value.numel() for value in part]), strict=True):
            means[id(value)] = piece.view(value.shape).clone()  # the script may write to it
    return [means[id(value)] for value in values]


def align(parameters: Sequence[nn.Parameter | Tensor], world: World) -> None:
    """Give gradients that every rank computed by itself the digits that rank 0 got. One broadcast for 25 MB."""
    grads = [grad for grad in map(grad_of, parameters) if grad is not None and not grad.is_sparse]
    for part in in_parts(grads):
        flat = world.broadcast(torch.cat([grad.detach().reshape(-1) for grad in part]))
        for grad, piece in zip(part, flat.split([grad.numel() for grad in part]), strict=True):
            grad.detach().copy_(piece.view_as(grad))


def in_parts(parameters: Sequence[_T]) -> Iterator[list[_T]]:
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
