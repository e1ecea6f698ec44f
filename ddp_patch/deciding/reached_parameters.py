"""Parameters that the code of an autograd function reaches by itself, and may write gradients to, unseen."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from torch import nn

from ..calling.scripts_code import is_torchs
from .code import content_of, names_in

_MOST = 1024  # items of a container that are looked at


def reached_parameters(function: type) -> str:
    """Name a variable by which a function's halves come to parameters that they are not given; empty if none does.

    Args:
        function: a class of ``torch.autograd.Function``.
    """
    for kind in function.__mro__:
        methods = () if is_torchs(kind) else [getattr(value, "__func__", value) for value in vars(kind).values()]
        for method in methods:
            if isinstance(method, types.FunctionType):
                for name, value in _variables(method):
                    if _holds_some(value):
                        return name
    return ""


def _variables(method: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name in names_in(method.__code__).looked_up:
        yield name, method.__globals__.get(name)
    for name, cell in zip(method.__code__.co_freevars, method.__closure__ or (), strict=True):
        yield name, content_of(cell)


def _holds_some(value: Any) -> bool:
    if isinstance(value, dict):
        value = [*value.values()]
    items = value[:_MOST] if isinstance(value, (list, tuple)) else [value]
    return any(isinstance(item, (nn.Parameter, nn.Module)) for item in items)
