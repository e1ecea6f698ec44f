"""Nodes in a forward's graph that bring every backward to every parameter, and say when it comes by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..batch.nodes import named_after_all


class Anchor(torch.autograd.Function):
    """A value that depends on every parameter and passes no gradient on: each gets an undefined one."""

    @staticmethod
    def forward(ctx: Any, *parameters: Tensor) -> Tensor:
        """Name the parameters."""
        ctx.set_materialize_grads(False)
        ctx.count = len(parameters)
        return parameters[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        """Visit every parameter."""
        return (None,) * ctx.count


class Tie(torch.autograd.Function):
    """Pass outputs through, with the anchor as one more input; a backward that comes by arms DDP."""

    @staticmethod
    def forward(
        ctx: Any, names: Any, sync: Any, anchor: Tensor, only_parameters: bool, *outputs: Tensor
    ) -> tuple[Tensor, ...]:
        """Give outputs that share memory with those of the forward."""
        ctx._names_of_outputs = names
        ctx.set_materialize_grads(False)
        ctx.sync, ctx.anchor, ctx.only_parameters = sync, anchor, only_parameters
        # detach, not view_as: a view made by a custom function refuses in-place writes.
        return tuple(output.detach() for output in outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        """Say so, before any parameter is visited."""
        ctx.sync.reached(ctx.anchor)
        return (None, None, None, None, *grads)


# Bound here so that the guarded door for the scripts' own autograd functions does not slow our own.
anchor: Callable[..., Tensor] = Anchor.apply


def tie(sync: Any, anchor: Tensor, only_parameters: bool, *outputs: Tensor) -> tuple[Tensor, ...]:
    """Pass outputs through a node that is called like those that they were computed by."""
    tied: tuple[Tensor, ...] = named_after_all(outputs, Tie)(sync, anchor, only_parameters, *outputs)
    return tied
