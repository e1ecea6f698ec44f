"""The arguments of functions of torch, by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def bound(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Bind a function's arguments by name."""
    defaults, required = _defaults(func)
    arguments = {**dict(zip(defaults, args, strict=False)), **kwargs}
    if len(args) > len(defaults) or not required <= arguments.keys() <= defaults.keys():
        inspect.signature(func).bind(*args, **kwargs)  # raises what Python would
    return {**defaults, **arguments}


@functools.cache
def _defaults(func: Callable[..., Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """What a function's arguments are without being given, and which have to be."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(func).parameters.items()}
    return defaults, frozenset(name for name, value in defaults.items() if value is inspect.Parameter.empty)
