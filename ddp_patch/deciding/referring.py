"""What stands for something else, which is walked instead: bound methods, partial functions, references, ..."""

from __future__ import annotations

import contextvars
import functools
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .standing import MISSING

if TYPE_CHECKING:
    from .walk import Walk


def _variable(walk: Walk, thing: contextvars.ContextVar[Any], depth: int) -> Any:
    value = thing.get(MISSING)
    walk.standing.place(lambda *_: thing.get(MISSING), thing.name, value)
    return walk.over(value, depth)


def _referred(walk: Walk, thing: weakref.ref[Any], depth: int) -> Any:
    return walk.over(thing(), depth)


def _bound(walk: Walk, thing: types.MethodType, depth: int) -> Any:
    return walk.over(thing.__func__, depth), walk.over(thing.__self__, depth)


def _of_c(walk: Walk, thing: types.BuiltinMethodType, depth: int) -> Any:
    owner = thing.__self__
    return walk.over(owner, depth) if isinstance(owner, walk.generators) else walk.instance(thing, depth)


def _partial(walk: Walk, thing: functools.partial[Any], depth: int) -> Any:
    return tuple(walk.over(part, depth) for part in (thing.func, thing.args, thing.keywords))


def _wrapped(walk: Walk, thing: Any, depth: int) -> Any:
    names = ("__func__", "fget", "func", "__wrapped__")
    return walk.over(next(getattr(thing, name) for name in names if hasattr(thing, name)), depth)


# kinds -> how one of them is walked
WALKS: tuple[tuple[Any, Callable[[Walk, Any, int], Any]], ...] = (
    (types.MethodType, _bound),
    (types.BuiltinMethodType, _of_c),
    (functools.partial, _partial),
    ((staticmethod, classmethod, property, functools.cached_property, type(functools.lru_cache(int))), _wrapped),
    (contextvars.ContextVar, _variable),
    (weakref.ref, _referred),
)
