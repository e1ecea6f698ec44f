"""Change the class of one object, as FSDP2 and ``torch.nn.utils.parametrize`` do: same object, same identity.

The new class is made on the fly, looks like the old one, and pickles as the old one.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from .scripts_code import is_generated

_MARK = "_ddp_patch_original"  # in the new class, names the old one
_IS_MADE = "__ddp_patch_is_made__"  # in the new class, once it is ready; such names are of no interest to walks
_TORCH = os.path.join(os.path.dirname(inspect.getfile(torch)), "")
_DYNAMO = (f"{_TORCH}_dynamo{os.sep}", f"{_TORCH}_guards.py")  # whose guards look at classes from C
_TRUSTED = {"torch", *sys.stdlib_module_names}  # ABCMeta keeps a table for each class, torch.jit's the methods
_HEARS = "__init_subclass__"
_class = vars(object)["__class__"]  # the slot itself: the twin hides it behind a property
_attributes: Callable[[type], Mapping[str, Any]] = vars(type)["__dict__"].__get__  # likewise


def redirect_calls(
    instance: Any, to: Callable[[Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
) -> None:
    """Have calls of one instance go elsewhere, also when it gets another class.

    Args:
        instance: whose.
        to: gets it, its author's ``__call__``, and the arguments.
    """
    original, reference = type(instance), weakref.ref(instance)

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = functools.partial(original.__call__, self)
        if self is not reference():  # made by self.__class__(...)
            return run(*args, **kwargs)
        return to(self, run, args, kwargs)

    def reclass(self: Any, new: type) -> None:
        _class.__set__(self, new)
        if self is reference():
            redirect_calls(self, to)

    attributes = {
        "__call__": called,
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        # The pickler compares obj.__class__ with the class that __reduce_ex__ names.
        "__class__": property(lambda self: original, reclass),
        "__reduce_ex__": _reduce_as_original,
        _MARK: original,
    }
    if is_generated(original):  # torch.fx gives the class another forward, and another ``__call__``
        attributes["recompile"] = _recompile_as_original
    with _unheard(original):
        twin = _made(original, attributes)
    _class.__set__(instance, twin)


def _made(original: type, attributes: dict[str, Any]) -> type:
    """Make a class of which the author's metaclass is not told: it is what Python and torch make of one.

    What the script sets on it, as ``type(self).calls += 1`` and methods of classes do, is set on the author's, and that
    is what it finds in it: whoever replaces a method for a while asks whose it is before it is put back.
    """
    kind = next(base for base in inspect.getmro(type(original)) if base.__module__.partition(".")[0] in _TRUSTED)
    twin: type = kind.__new__(_handing_on(type(original)), original.__name__, (original,), attributes)
    kind.__init__(twin, original.__name__, (original,), attributes)  # type: ignore[misc]
    type.__setattr__(twin, _IS_MADE, True)  # what was set before is its own: the tables of ABCMeta
    return twin


@functools.cache
def _handing_on(metaclass: Any) -> Any:
    """Give a metaclass of classes that stand for others: what is set on them is set on these, and theirs is found."""

    def original(cls: type) -> Any:
        found = _attributes(cls)
        return found[_MARK] if _IS_MADE in found else None

    def set_on_original(cls: type, name: str, value: Any) -> None:
        if (its := original(cls)) is not None:
            setattr(its, name, value)
        else:
            metaclass.__setattr__(cls, name, value)

    def delete_on_original(cls: type, name: str) -> None:
        if (its := original(cls)) is not None:
            delattr(its, name)
        else:
            metaclass.__delattr__(cls, name)

    def shown(slot: Any) -> property:
        def get(cls: type) -> Any:
            return slot.__get__(cls if _is_dynamo(sys._getframe(1)) else original(cls) or cls)

        return property(get, lambda cls, value: slot.__set__(cls, value))

    attributes = {"__setattr__": set_on_original, "__delattr__": delete_on_original, "__module__": metaclass.__module__}
    attributes |= {name: shown(vars(type)[name]) for name in ("__dict__", "__mro__", "__bases__", "__annotations__")}
    with _unheard(metaclass):
        return type(metaclass.__name__, (metaclass,), attributes)


def _is_dynamo(frame: types.FrameType) -> bool:
    """Tell whether torch.compile asks, itself or by code that it has made of a guard."""
    asking = frame.f_back if frame.f_code.co_filename == "<string>" else frame
    return asking is not None and asking.f_code.co_filename.startswith(_DYNAMO)


@contextmanager
def _unheard(original: type) -> Iterator[None]:
    """Surround the making of a class of which the author's ``__init_subclass__``, a registry say, is not told."""
    if not isinstance(original.__init_subclass__, types.MethodType):  # object's, in C
        yield
        return
    existing = vars(original).get(_HEARS)
    # It is looked for from the first base on, and a base in front of the author's would change the layout.
    type.__setattr__(original, _HEARS, classmethod(lambda cls, **_: None))
    try:
        yield
    finally:
        if existing is None:
            type.__delattr__(original, _HEARS)
        else:
            type.__setattr__(original, _HEARS, existing)


def restore(instance: Any) -> None:
    """Give a swapped instance its class back."""
    original = _attributes(type(instance)).get(_MARK)
    if original is not None:
        _class.__set__(instance, original)


def original_class(instance: Any) -> type:
    """The class that the script's author wrote."""
    return _attributes(type(instance)).get(_MARK, type(instance))  # type: ignore[no-any-return]


@contextmanager
def as_written(instances: Iterable[Any]) -> Iterator[None]:
    """Surround what asks for the class itself of swapped instances: ``type(x) is Net``."""
    twins = [(instance, type(instance)) for instance in instances if _MARK in _attributes(type(instance))]
    for instance, twin in twins:
        _class.__set__(instance, getattr(twin, _MARK))
    try:
        yield
    finally:
        for instance, twin in twins:
            _class.__set__(instance, twin)


def _recompile_as_original(self: Any) -> Any:
    with as_written([self]):
        return self.recompile()


def _reduce_as_original(self: Any, protocol: Any) -> Any:
    with as_written([self]):
        return self.__reduce_ex__(protocol)
