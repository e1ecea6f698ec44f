"""Whose memory a tensor looks into."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def shares_memory(result: Any, whole: Tensor) -> bool:
    """Tell whether a result, or a part of it, looks into a tensor's memory."""
    if isinstance(result, (list, tuple)):
        return any(shares_memory(item, whole) for item in result)
    return (
        isinstance(result, Tensor)
        and not is_batch(result)
        and result.layout is torch.strided
        and result.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    )


def is_batch(value: Any) -> bool:
    """Tell a batch, without its class."""
    return hasattr(value, "_is_slice")
