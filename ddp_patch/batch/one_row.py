"""Norms of a single row, as a rank may have: torch's backward on the CPU takes it for contiguous if it is permuted.

A gradient of strides ``(C, 1, W * C, C)``, as ``flatten(2).permute(0, 2, 1)`` leaves, is one of ``[1, C, H, W]`` that
``aten::native_batch_norm_backward`` (torch 2.13) reads in the wrong order; with several rows it is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .nodes import named_after


class _InOrder(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0].contiguous()


def is_one_row(rows: Tensor) -> bool:
    """Tell what may be read in the wrong order."""
    return rows.dim() > 3 and rows.shape[0] == 1 and rows.is_cpu


def in_order(rows: Tensor) -> Tensor:
    """Give rows as they are, and a single one in the order of its dimensions."""
    return rows.contiguous() if is_one_row(rows) else rows


def normed(norm: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Give a norm of rows, its first argument, which is right for a single one too."""

    def call(rows: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not is_one_row(rows):
            return norm(rows, *args, **kwargs)
        out = norm(rows.contiguous(), *args, **kwargs)
        return named_after(out, _InOrder)(out) if out.requires_grad else out

    return call
