"""The script in float64: what is left of a difference there is none of rounding."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def install() -> None:
    """Have float32 mean float64, before the script and its libraries bind the name."""
    _remember_storages()
    torch.set_default_dtype(torch.float64)
    single = torch.float32
    torch.float32 = torch.float = torch.float64
    torch.FloatTensor = torch.DoubleTensor  # type: ignore[misc, assignment]
    Tensor.float = Tensor.double  # type: ignore[method-assign]
    nn.Module.float = nn.Module.double  # type: ignore[method-assign]
    # From NumPy and from files come float32 values whatever their name means here.
    for name in ("from_numpy", "as_tensor", "tensor", "asarray", "frombuffer"):
        setattr(torch, name, _widened(getattr(torch, name), single))


def _remember_storages() -> None:
    """Have torch note which storage is of which dtype, by their true names (torch 2.13 caches both directions)."""
    for dtype in (torch.float32, torch.float64):
        buffer = io.BytesIO()
        torch.save(torch.zeros(1, dtype=dtype), buffer)
        buffer.seek(0)
        torch.load(buffer)


def _widened(wrapped: Callable[..., Any], single: Any) -> Callable[..., Any]:
    @functools.wraps(wrapped)
    def made(*args: Any, **kwargs: Any) -> Any:
        value = wrapped(*args, **kwargs)
        if isinstance(value, Tensor) and value.dtype == single:
            wants_grad = value.requires_grad
            value = value.detach().double().requires_grad_(wants_grad)
        return value

    return made
