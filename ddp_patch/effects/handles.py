"""What the script holds of an object that rank 0 has: on rank 0 the object, on the others what stands for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import wrapt

if TYPE_CHECKING:
    from .shared import SharedObjects


class LeadersHandle(wrapt.ObjectProxy):  # type: ignore[type-arg]  # of no use here
    """What rank 0's script holds: the object, whose methods rank 0 calls."""

    OBJECT = "_self_objects", "__wrapped__"

    def __init__(self, wrapped: Any, objects: SharedObjects) -> None:
        super().__init__(wrapped)
        self._self_objects = objects

    def __del__(self) -> None:
        """Let go of the object, which may end here."""
        with self._self_objects.dropped(self.__wrapped__):
            self.__wrapped__ = None

    def __getattr__(self, name: str) -> Any:
        """Read what all ranks get."""
        if name.startswith("__"):
            return getattr(self.__wrapped__, name)
        return self._self_objects.attribute(type(self.__wrapped__), name, self.__wrapped__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it, on rank 0."""
        return self._self_objects.call(f"{type(self.__wrapped__).__name__}()", self.__wrapped__, args, kwargs)


class Nobody:
    """What another rank's thread holds in the place of an object that rank 0's thread has: it takes every call."""

    def __getattr__(self, name: str) -> Any:
        """Give a method."""
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Do nothing."""
        return self

    def __iter__(self) -> Iterator[Any]:
        """Give nothing."""
        return iter(())

    def __enter__(self) -> Any:
        """Begin nothing."""
        return self

    def __exit__(self, *error: object) -> None:
        """End nothing."""


class OthersHandle:
    """What the script of another rank holds in its place. It is of the same class, for ``isinstance``."""

    OBJECT = "_objects", "_object"

    def __init__(self, kind: type, objects: SharedObjects) -> None:
        attributes = {"_kind": kind, "_objects": objects, "_object": None}
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    @property  # type: ignore[misc]  # isinstance asks for it
    def __class__(self) -> type:
        """Of rank 0's object."""
        return object.__getattribute__(self, "_kind")  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        """Read what all ranks get."""
        if name.startswith("__"):
            raise AttributeError(name)
        objects, kind = (object.__getattribute__(self, attribute) for attribute in ("_objects", "_kind"))
        return objects.attribute(kind, name, None)

    def __setattr__(self, name: str, value: Any) -> None:
        """Leave it to rank 0, which sets it on the object itself."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it, on rank 0."""
        objects, kind = (object.__getattribute__(self, attribute) for attribute in ("_objects", "_kind"))
        return objects.call(f"{kind.__name__}()", None, args, kwargs)

    def __repr__(self) -> str:
        """Tell whose object it is."""
        return f"<rank 0's {object.__getattribute__(self, '_kind').__qualname__}>"


# What Python looks up on the class: ``with run``, ``run["key"] = value``, ``for entry in run``.
_OPERATORS = ("enter", "exit", "getitem", "setitem", "delitem", "contains", "len", "iter", "bool")


@functools.cache
def with_operators(handle: Any, kind: Any) -> Any:
    """A class of handles on objects of a class, with the operators that it has."""

    def operator(name: str) -> Callable[..., Any]:
        def call(self: Any, *args: Any) -> Any:
            objects, real = (object.__getattribute__(self, attribute) for attribute in handle.OBJECT)
            return objects.operate(kind, name, real, args)

        return call

    names = [f"__{name}__" for name in _OPERATORS]
    methods = {name: operator(name) for name in names if getattr(kind, name, None) is not None}
    if "__len__" in methods and "__bool__" not in methods:
        methods["__bool__"] = lambda self: len(self) > 0
    return type(handle.__name__, (handle,), methods)
