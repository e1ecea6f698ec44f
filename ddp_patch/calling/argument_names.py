"""What the author of a forward calls its arguments."""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Callable
from typing import Any

from torch import nn

from .calls import unwrap_compiled


def argument_names(module: nn.Module, count: int) -> list[str]:
    """Names of a forward's positional arguments, as the script's author wrote them."""
    forward = unwrap_compiled(module).forward
    names = _positional(getattr(forward, "__func__", forward))
    names = names[1:] if hasattr(forward, "__func__") else names
    return [names[i] if i < len(names) else f"argument {i}" for i in range(count)]


def _positional(function: Callable[..., Any]) -> list[str]:
    with contextlib.suppress(TypeError):  # a C function cannot be referred to weakly
        if function in _names:
            return _names[function]
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a ScriptModule, a C function
        return []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    with contextlib.suppress(TypeError):
        _names[function] = names
    return names


# Weakly: a function holds its module's names, and with them whatever the script has to end with.
_names: weakref.WeakKeyDictionary[Callable[..., Any], list[str]] = weakref.WeakKeyDictionary()
