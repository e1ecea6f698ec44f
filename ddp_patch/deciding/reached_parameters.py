"""Parameters that the code of an autograd function reaches by itself, and may write gradients to, unseen."""

from __future__ import annotations

import dis
import itertools
import types
from collections.abc import Iterator
from typing import Any

from torch import nn

from ..calling.scripts_code import is_torchs
from .code import content_of, names_in

_MOST = 1024  # items of a container that are looked at
_STORES = ("STORE_SUBSCR", "DELETE_SUBSCR", "DELETE_ATTR", "STORE_GLOBAL", "STORE_DEREF")
_WRITE = {"grad", "data", "append", "extend", "update", "add", "setattr"}


def reached_parameters(function: type) -> str:
    """Name a variable by which halves of a function that write to something come to parameters they are not given.

    Args:
        function: a class of ``torch.autograd.Function``.

    Returns:
        its name; empty if there is none.
    """
    for kind in function.__mro__:
        methods = () if is_torchs(kind) else [getattr(value, "__func__", value) for value in vars(kind).values()]
        for method in methods:
            if isinstance(method, types.FunctionType) and _may_write(method.__code__):
                for name, value in _variables(method):
                    if _holds_some(value):
                        return name
    return ""


def _may_write(code: types.CodeType) -> bool:
    """Tell code that may write to something else than its context, which comes first among what it is given."""
    mentioned = names_in(code).mentioned
    if not _WRITE.isdisjoint(mentioned) or any(name[-1:] == "_" and name[-2:] != "__" for name in mentioned):
        return True
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("EXTENDED_ARG", "CACHE")]
    for before, step in itertools.pairwise(steps):
        is_of_context = before.opname == "LOAD_FAST" and code.co_varnames[:1] == (before.argval,)
        if step.opname in _STORES or (step.opname == "STORE_ATTR" and not is_of_context):
            return True
    return False


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
