"""Functions that copy only where memory does not lie as they want it: as one process's lies, on every rank alike.

A rank's rows alone cannot tell: the stride of a dimension of one entry says nothing, and rows cut from a slice have no
holes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..forms import to_local
from ..nodes import named
from ..shared_memory import shares_memory
from ..strides import is_contiguous
from ..tensor import BatchTensor, Rule
from .metadata import strides_of


class ReshapedCopy(torch.autograd.Function):
    """``reshape`` into memory of its own, though the rows might be viewed."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, shape: Sequence[int]) -> Tensor:
        """Copy."""
        ctx.shape = rows.shape
        copy = rows.new_empty(shape)
        copy.view(rows.shape).copy_(rows)
        return copy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Reshape back."""
        return grads[0].reshape(ctx.shape), None


_reshaped_copy = named(ReshapedCopy, "UnsafeViewBackward0")  # what torch's reshape leaves in a graph where it copies


def contiguous(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.contiguous()`` is ``x`` or a copy."""
    batch: BatchTensor = args[0]
    order = args[1] if len(args) > 1 else kwargs.get("memory_format", torch.contiguous_format)
    return batch if keeps_memory(func, batch, order) else copied(batch, order)


def keeps_memory(func: Any, batch: BatchTensor, order: torch.memory_format) -> bool:
    """Tell whether one process's tensor is what ``x.contiguous(order)`` or ``x.to(memory_format=order)`` returns."""
    whole = torch.empty_strided(batch.shape, strides_of(batch), device="meta")
    return func(whole, memory_format=order) is whole


def copied(batch: BatchTensor, order: torch.memory_format = torch.contiguous_format) -> BatchTensor:
    """Give a batch of copied rows."""
    return BatchTensor.from_local(to_local(batch).clone(memory_format=order), batch._layout)


def is_view(batch: BatchTensor, shape: Sequence[int]) -> bool:
    """Tell whether one process's ``reshape`` gives a view."""
    strides = strides_of(batch)
    if is_contiguous(list(batch.shape), strides):
        return True
    try:
        torch.empty_strided(batch.shape, strides, device="meta").view(shape)
    except RuntimeError:
        return False
    return True


def reshaped_copy(rows: Tensor, shape: Sequence[int]) -> Tensor:
    """Reshape rows into memory of their own, where a rank's might be viewed."""
    result = rows.reshape(shape)
    return _reshaped_copy(rows, shape) if shares_memory(result, rows) else result


def rules() -> list[tuple[Any, Rule]]:
    """Functions of memory formats."""
    return [(Tensor.contiguous, contiguous)]
