"""What comes to a batch below torch's Python functions, where its rows and its graph cannot be followed."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import BatchError
from .forms import full_tensor


def computed_below(func: Any, args: tuple[Any, ...]) -> Any:
    """Compute what comes to batches there and has no gradient.

    Raises:
        BatchError: for anything else.
    """
    if func is torch.ops.aten.alias.default and not any(form.requires_grad for form in args[0].forms):
        return args[0].with_forms({})  # torch.LongTensor(batch)
    if func in (torch.ops.aten.eq.Tensor, torch.ops.aten.ne.Tensor):  # subclasses of the script's are asked alone
        return func(*(full_tensor(value) if hasattr(value, "_layout") else value for value in args))
    raise below_torch(func)


def below_torch(function: Any) -> BatchError:
    """Make the error for a batch that comes where its rows cannot be followed."""
    return BatchError(
        f"{function} was called on a batch below torch's Python functions (by torch.FloatTensor or "
        "a C++ extension), where its rows and its gradient would be lost. "
        "Call it inside the model's forward, or on plain values: torch.as_tensor(batch.detach().cpu().numpy())."
    )
