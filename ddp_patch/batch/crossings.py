"""The crossings between rows and the global view, with the gradient rule of docs/how-it-works.md.

DDP averages gradients over N ranks, and everything downstream of a crossing is computed alike on every rank.
Hence: from rows to the global view, the backward gradient is multiplied by N; the way back divides by N. Each
crossing's backward is the dual crossing, so gradients of gradients are right as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .layout import Layout
from .nodes import named_after
from .versions import with_its_node
from .world import World


class AllGather(torch.autograd.Function):
    """Rows to the whole batch: all_gather forward; backward keeps the own rows of the gradient, times N."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Concatenate all ranks' rows."""
        ctx.set_materialize_grads(False)  # what passes no gradient on leaves a parameter's None
        ctx.layout = layout
        return World.get().all_gather_rows(rows, layout)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        """Take the own slice."""
        return None if grads[0] is None else shard(grads[0], ctx.layout) * World.get().size, None


class Shard(torch.autograd.Function):
    """The whole batch to rows: own slice forward; backward gathers the rows' gradients, over N."""

    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Copy the own rows."""
        ctx.layout = layout
        ctx.leads_on = True  # for who looks where a backward comes by: whether there are rows yet is each rank's own
        return local_rows(whole, layout).clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Gather the gradient of every row."""
        return all_gather(grads[0], ctx.layout) / World.get().size, None


class AllReduce(torch.autograd.Function):
    """The ranks' partial sums to their total, or to a mean."""

    @staticmethod
    def forward(ctx: Any, partial: torch.Tensor, divisor: int, dtype: torch.dtype) -> torch.Tensor:
        """All-reduce, and divide."""
        ctx.divisor, ctx.dtype = divisor, partial.dtype
        world = World.get()
        # A trial puts the sum in its place, which one rank's rows may not come to: they branch on their number.
        summed = partial.clone() if world.skips_collectives else world.all_reduce(partial)
        return (summed if divisor == 1 else summed / divisor).to(dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Every rank's part gets the whole gradient, times N, over the divisor."""
        grad = replicate(grads[0]).to(ctx.dtype) * World.get().size
        return grad if ctx.divisor == 1 else grad / ctx.divisor, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Reduce the tangents alike: gradients that forward-mode AD follows are averaged."""
        summed = World.get().all_reduce(tangents[0])
        return (summed if ctx.divisor == 1 else summed / ctx.divisor).to(tangents[0].dtype)


class Replicate(torch.autograd.Function):
    """A global tensor that meets every row (a weight, a temperature): as it is forward; backward sums, over N."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        """Pass through."""
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Sum what all rows contributed."""
        return all_reduce(grads[0]) / World.get().size


# Bound here so that the guarded door for the scripts' own autograd functions does not slow our own.
_shard: Callable[[torch.Tensor, Layout], torch.Tensor] = Shard.apply
_replicate: Callable[[torch.Tensor], torch.Tensor] = Replicate.apply


def all_gather(rows: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Give every rank the whole batch. One all_gather."""
    rows = with_its_node(rows)
    return named_after(rows, AllGather)(rows, layout)  # type: ignore[no-any-return]


def shard(whole: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Take this rank's rows. No communication, unless a gradient flows back that is not averaged anyway."""
    if not (whole.requires_grad and torch.is_grad_enabled()):
        return local_rows(whole, layout)
    if World.get().has_averaged_gradient(whole):
        return local_rows(whole, layout).clone()
    return _shard(whole, layout)


def shard_argument(whole: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Take this rank's rows, in one piece where the whole is: cuDNN wants that of states ``[L, B, H]``."""
    rows = shard(whole, layout)
    return rows.contiguous() if layout.dim and whole.is_contiguous() else rows


def all_reduce(
    partial: torch.Tensor, divisor: int = 1, dtype: torch.dtype | None = None, node: str | None = None
) -> torch.Tensor:
    """Sum partial results over the ranks, or take their mean. One all_reduce.

    Args:
        partial: this rank's part of the sum.
        divisor: what to divide by, on all ranks the same.
        dtype: of the result, if narrower than that of the sum.
        node: what one process's node in the graph is called, where it is not that of a sum or its mean.
    """
    function = named_after(partial, AllReduce, is_mean=divisor != 1, instead=node)
    return function(partial, divisor, dtype or partial.dtype)  # type: ignore[no-any-return]


def replicate(tensor: torch.Tensor) -> torch.Tensor:
    """Use a global tensor in the computation of rows."""
    if tensor.requires_grad and torch.is_grad_enabled() and not (world := World.get()).has_averaged_gradient(tensor):
        if world.observation is not None:
            world.observation.note_trained_tensor(tensor)
        return _replicate(tensor)
    return tensor


def local_rows(whole: torch.Tensor, layout: Layout) -> torch.Tensor:
    """This rank's rows, outside autograd's accounting of crossings: a view where they are consecutive."""
    return layout.rows(World.get().rank).of(whole, layout.dim)
