"""What stands for something else, which is walked instead: bound methods, partial functions, references, ..."""

from __future__ import annotations

import collections
import contextvars
import datetime
import functools
import itertools
import numbers
import operator
import pathlib
import types
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from ..calling.scripts_code import is_own, is_scripts_file
from .state_snapshot import MISSING

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
    if isinstance(owner, _CONTAINERS):
        return thing.__name__, walk.over(owner, depth)
    return walk.over(owner, depth) if isinstance(owner, walk.generators) else walk.instance(thing, depth)


def _value(walk: Walk, thing: Any, depth: int) -> Any:
    """Tell a thing by its text: no table can hold it, since nothing refers to it weakly."""
    return type(thing), repr(thing), walk.instance(thing, depth) if is_own(type(thing)) else None


def _partial(walk: Walk, thing: Any, depth: int) -> Any:
    return tuple(walk.over(part, depth) for part in (thing.func, thing.args, thing.keywords))


def _dispatching(walk: Walk, thing: functools.singledispatchmethod[Any], depth: int) -> Any:
    return walk.over(thing.func, depth), *(walk.over(each, depth) for each in thing.dispatcher.registry.values())


def _proxy(walk: Walk, thing: types.MappingProxyType[Any, Any], depth: int) -> Any:
    walk.standing.size(thing)
    for name, value in thing.items():
        walk.standing.place(thing.get, name, value, lambda name, value: None)  # it takes none
    return tuple((repr(name), walk.over(value, depth)) for name, value in thing.items())


def _wrapped(walk: Walk, thing: Any, depth: int) -> Any:
    names = ("__func__", "fget", "func", "__wrapped__")
    return walk.over(next(getattr(thing, name) for name in names if hasattr(thing, name)), depth)


def _file(walk: Walk, thing: types.ModuleType, depth: int) -> Any:
    # Such as torch.ops, which has no file and says "_ops.py" (torch 2.13): more names come whenever one is asked for.
    is_torchs = thing.__name__.partition(".")[0] == "torch"
    if is_torchs or not is_scripts_file(getattr(thing, "__file__", None) or ""):
        return walk.number(thing)
    walk.standing.size(vars(thing))  # a name may come later
    return tuple((name, walk.visit(vars(thing), name, depth)) for name in [*vars(thing)] if name in walk.names)


def used_up(walk: Walk, thing: Iterator[Any]) -> Any:
    """Tell how far an iterator has come, if that can be told."""
    walk.standing.is_endless = True
    return repr(thing) if isinstance(thing, itertools.count) else object()


_CONTAINERS = (dict, list, set, collections.deque)
_OF_C = (types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType)
_GETTERS = (operator.attrgetter, operator.itemgetter, operator.methodcaller)
_OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_OF_PYTHON = (str, bytes, range, slice, numbers.Number, datetime.date, datetime.time, datetime.timedelta)
_VALUES = (*_OF_PYTHON, *_OF_C, *_GETTERS, *_OF_TORCH, pathlib.PurePath)

# kinds -> how one of them is walked
WALKS: tuple[tuple[Any, Callable[[Walk, Any, int], Any]], ...] = (
    (_VALUES, _value),
    (types.ModuleType, _file),
    (types.MethodType, _bound),
    (types.BuiltinMethodType, _of_c),
    ((functools.partial, functools.partialmethod), _partial),
    (functools.singledispatchmethod, _dispatching),
    (types.MappingProxyType, _proxy),
    ((staticmethod, classmethod, property, functools.cached_property, type(functools.lru_cache(int))), _wrapped),
    (contextvars.ContextVar, _variable),
    (weakref.ref, _referred),
)
