"""Nodes in a forward's graph that bring every backward to every parameter, and say when it comes by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..batch.nodes import named_after


class TouchParameters(torch.autograd.Function):
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


class OutputHook(torch.autograd.Function):
    """Pass an output through, with what touches all parameters as one more input; a backward that comes by arms DDP.

    Each output has a node of its own: a backward from one of them must not come by what only the others were made of.
    """

    is_below_transforms = True  # models are not taken over in them

    @staticmethod
    def forward(ctx: Any, sync: Any, parameter_link: Tensor, only_parameters: bool, output: Tensor) -> Tensor:
        """Give an output that shares memory with that of the forward."""
        ctx.set_materialize_grads(False)
        ctx.sync, ctx.parameter_link, ctx.only_parameters = sync, parameter_link, only_parameters
        # detach, not view_as: a view made by a custom function refuses in-place writes.
        return output.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        """Tell the replica's ``GradientSync``, before any parameter is visited."""
        ctx.sync.note_outputs_reached(ctx.parameter_link)
        return None, None, None, grads[0]


# Bound here so that the guarded door for the scripts' own autograd functions does not slow our own.
_touch: Callable[..., Tensor] = TouchParameters.apply


def touch_parameters(parameters: Sequence[Tensor]) -> Tensor:
    """Give a value that depends on every parameter, also on those that a forward has frozen: DDP waits for these."""
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    try:
        for parameter in frozen:
            parameter.requires_grad = True
        return _touch(*parameters)
    finally:
        for parameter in frozen:
            parameter.requires_grad = False


def hook_output(sync: Any, parameter_link: Tensor, only_parameters: bool, output: Tensor) -> Tensor:
    """Pass an output through a node that is called like the one that it was computed by."""
    hooked: Tensor = named_after(output, OutputHook)(sync, parameter_link, only_parameters, output)
    return hooked
