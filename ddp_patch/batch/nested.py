"""Arguments of a torch function, in lists, tuples and dicts, as torch itself looks for tensors in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def nested(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to every leaf; what it leaves unchanged stays the same object."""
    if isinstance(value, (list, tuple)) and type(value) is not torch.Size:
        items = [nested(function, item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if type(value) is dict:
        return {key: nested(function, item) for key, item in value.items()}
    return function(value)
