"""Objects that rank 0 alone has, such as a connection to a server: all call them, rank 0 acts, all get what it got.

The methods are those of the class, so nothing has to be known about a library but where its objects come from.
"""

from __future__ import annotations

import datetime
import functools
import importlib
import inspect
import itertools
import pathlib
import types
import uuid
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any

import numpy as np
import torch
import wrapt

from ..batch.forms import full_tensor
from ..batch.pending_tensor import PendingTensor
from ..batch.tensor import BatchTensor
from ..errors import LockstepError
from ..structure import map_leaves
from .handles import LeadersHandle, Nobody, OthersHandle, with_operators
from .ownership import Ownership
from .rank_zero import RankZero

_VALUES = (
    *(type(None), bool, int, float, complex, str, bytes, Decimal, np.ndarray, np.generic, torch.Size, torch.dtype),
    *(datetime.datetime, datetime.date, datetime.timedelta, uuid.UUID, pathlib.PurePath, Enum),
)


@dataclass(frozen=True)
class Library:
    """What has to be known of a library.

    Attributes:
        giving_back: methods, such as "Task.connect", that return their first argument: every rank gets its own.
        data: modules (their names begin so) whose objects are values, that every rank gets a copy of.
    """

    giving_back: frozenset[str] = frozenset()
    data: tuple[str, ...] = ()


ANY = Library()


class SharedObjects:
    """Knows what rank 0 has, by numbers that mean the same on every rank."""

    def __init__(self, rank_zero: RankZero, owners: Ownership, library: Library = ANY) -> None:
        """Start with none.

        Args:
            rank_zero: who acts for all ranks.
            owners: tells who is calling.
            library: that the objects are of.
        """
        self._rank_zero = rank_zero
        self._owners = owners
        self._library = library
        self._count = itertools.count()
        self._numbers: dict[int, int] = {}  # on rank 0: id of an object that its script has -> number
        self._handles: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # what the script has

    def made(self, what: str, real: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function on rank 0, or a class, unless the library itself calls it."""
        if self._owners.caller() in ("own", ""):
            return real(*args, **kwargs)
        return self.call(what, real, args, kwargs)

    def call(self, what: str, real: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function on rank 0.

        Args:
            what: its name.
            real: the function; only rank 0's is called.
            args: given to it, with batches as the tensors that one process would have.
            kwargs: likewise.

        Raises:
            BaseException: on every rank, what it raises on rank 0.
        """
        args, kwargs = map_leaves(plain, (args, kwargs))
        if self._rank_zero.is_silent():
            return Nobody() if isinstance(real, type) else None
        if not self._rank_zero.in_lockstep():
            args, kwargs = map_leaves(_theirs, (args, kwargs))
            return real(*args, **kwargs)
        if self._rank_zero.note_output is not None:
            self._rank_zero.note_output("logged", (args, kwargs))
        kept: list[Any] = []

        def act() -> tuple[str, Any]:
            inner, named = map_leaves(_theirs, (args, kwargs))
            result = real(*inner, **named)
            kept.append(result)
            return ("argument", None) if what in self._library.giving_back else self._encoded(result)

        kind, answer = self._rank_zero.call(what, act)
        if kind == "argument":
            return kept[0] if kept else next(iter((*args, *kwargs.values())), None)
        if kind == "value":
            return answer
        number, module, name = answer
        handle = self._handles.get(number)
        return self._handle(number, kept[0] if kept else _class(module, name)) if handle is None else handle

    def _handle(self, number: int, target: Any) -> Any:
        kind: Any = type(target)
        if self._rank_zero.is_leader:
            self._numbers[id(target)] = number
            handle = with_operators(LeadersHandle, kind)(target, self)
        else:
            handle = with_operators(OthersHandle, target)(target, self)
        self._handles[number] = handle
        return handle

    def dropped(self, target: Any) -> AbstractContextManager[None]:
        """Note that rank 0's script has an object no more; if it ends inside, its end is rank 0's alone."""
        self._numbers.pop(id(target), None)
        return self._rank_zero.alone()

    def _encoded(self, result: Any) -> tuple[str, Any]:
        if self._is_value(result):
            return "value", result
        existing = self._numbers.get(id(result))
        number = next(self._count) if existing is None else existing
        return "object", (number, type(result).__module__, type(result).__qualname__)

    def _is_value(self, result: Any) -> bool:
        if type(result) in (list, tuple, set, frozenset):
            return all(map(self._is_value, result))
        if type(result) is dict:
            return all(self._is_value(key) and self._is_value(value) for key, value in result.items())
        is_data = type(result).__module__.startswith(self._library.data) if self._library.data else False
        return is_data or isinstance(result, _VALUES) or type(result) is torch.Tensor

    def attribute(self, kind: type, name: str, real: Any) -> Any:
        """Read an attribute of an object, or give a method of it; rank 0 has the object."""
        what = f"{kind.__name__}.{name}"
        if _is_method(kind, name):
            return functools.partial(self._method, what, getattr(real, name, None))
        return self.call(what, lambda: getattr(real, name), (), {})

    def operate(self, kind: type, name: str, real: Any, args: tuple[Any, ...]) -> Any:
        """Apply an operator to an object; what it iterates over is there at once."""
        what, method = f"{kind.__name__}.{name}", getattr(real, name, _nowhere)
        if name == "__iter__":
            return iter(self.call(what, lambda: list(real), args, {}))
        return self.call(what, method, args, {})

    def _method(self, what: str, method: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self.call(what, method, args, kwargs)


def _nowhere(*_: Any) -> None:
    """Stand for a method that rank 0 calls."""


def plain(leaf: Any) -> Any:
    """Give a batch as a tensor that any library takes."""
    if isinstance(leaf, BatchTensor):
        return full_tensor(leaf).detach().cpu()
    return leaf.detach().cpu() if isinstance(leaf, PendingTensor) else leaf


def _theirs(leaf: Any) -> Any:
    return leaf.__wrapped__ if isinstance(leaf, LeadersHandle) else leaf


def _is_method(kind: type, name: str) -> bool:
    found = inspect.getattr_static(kind, name, None)
    return isinstance(found, (types.FunctionType, classmethod, staticmethod, wrapt.FunctionWrapper)) or (
        callable(found) and not isinstance(found, type)
    )


def _class(module: str, name: str) -> type:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, wrapt.FunctionWrapper):  # a class whose making is patched
        found = found.__wrapped__
    if not isinstance(found, type):
        raise LockstepError(f"rank 0 got an object of {module}.{name}, a class that this rank cannot find")
    return found
