"""Things that a forward may branch on and that change without an attribute being set.

Lists and dicts on its layers, configuration objects, attributes of classes, global variables that its code names. They
are read once; afterwards a call compares what stands in each place with what stood there, by identity.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

PLAIN = (bool, int, float, complex, str, bytes, type(None))
OF_TORCH = frozenset(vars(nn.Module())) - {"training"}  # parameters, layers and hooks, told by other means
_MISSING = object()


class Guards:
    """Watches some things; ``content`` is what they hold, for comparison."""

    def __init__(self, layers: list[nn.Module], value: Callable[[Any], Any]) -> None:
        """Find them.

        Args:
            layers: of a module.
            value: gives something hashable that stands for a value.
        """
        self._value = value
        self._things = list(_changeable(layers))
        self._read()

    def _read(self) -> None:
        self._places: list[tuple[Callable[..., Any], Any, Any]] = []
        self._sizes: list[tuple[Any, int]] = []
        self._flat: list[tuple[Any, Any, list[type]]] = []
        self._deep: list[tuple[Any, Any]] = []
        content: list[Any] = []
        for thing in self._things:
            if isinstance(thing, types.FunctionType):
                content.append(self._of_function(thing))
            elif isinstance(thing, (list, dict, set)):
                content.append(self._of_container(thing))
            else:
                content.append(self._of_attributes(thing))
        self.content = tuple(filter(None, content))

    def changed(self) -> bool:
        """Tell whether some of it changed since it was last asked; ``content`` is new then."""
        if self._is_as_read():
            return False
        before = self.content
        self._read()
        return before != self.content

    def _is_as_read(self) -> bool:
        for get, name, seen in self._places:
            if get(name, _MISSING) is not seen:
                return False
        for thing, size in self._sizes:
            if len(thing) != size:
                return False
        for thing, copy, kinds in self._flat:
            if thing != copy or list(map(type, thing)) != kinds:
                return False
        return all(self._value(thing) == seen for thing, seen in self._deep)

    def _of_function(self, function: types.FunctionType) -> Any:
        found: list[tuple[Any, ...]] = []
        for name in _globals_of(function.__code__):
            value = function.__globals__.get(name, _MISSING)
            self._places.append((function.__globals__.get, name, value))
            if type(value) in PLAIN:
                found.append((name, type(value), value))
            elif type(value) in (list, dict):
                found.append((name, self._of_container(value)))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._places.append((functools.partial(_content_of, cell), name, _content_of(cell)))
            value = _content_of(cell)
            if type(value) in PLAIN:
                found.append((name, type(value), value))
        return tuple(found)

    def _of_container(self, thing: Any) -> Any:
        value = self._value(thing)
        if type(thing) is list and all(type(item) in PLAIN for item in thing):
            self._flat.append((thing, list(thing), list(map(type, thing))))
        else:
            self._deep.append((thing, value))
        return value

    def _of_attributes(self, thing: Any) -> Any:
        held = vars(thing)
        self._sizes.append((held, len(held)))
        found = []
        for name, value in held.items():
            if name[:2] == "__":
                continue
            if not isinstance(value, types.FunctionType):
                self._places.append((held.get, name, value))
            if type(value) in PLAIN:
                found.append((name, type(value), value))
        return tuple(found)


def _content_of(cell: Any, *_: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return _MISSING


@functools.lru_cache(maxsize=4096)
def _globals_of(code: types.CodeType) -> tuple[str, ...]:
    """Names of global variables that a function reads, with those of the functions inside it."""
    names = {step.argval: None for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= dict.fromkeys(_globals_of(constant))
    return tuple(names)


def _changeable(layers: list[nn.Module]) -> Iterator[Any]:
    """Yield them, each once."""
    seen: set[int] = set()

    def new(thing: Any) -> bool:
        before = len(seen)
        seen.add(id(thing))
        return len(seen) > before

    for layer in layers:
        for name, value in vars(layer).items():
            if name not in OF_TORCH and may_change(value) and new(value):
                yield value
        for kind in type(layer).__mro__:  # with the class that stands for the author's, which a script may write to
            if kind.__module__.startswith("torch.") or kind is object or not new(kind):
                continue
            yield kind
            yield from (value for value in vars(kind).values() if isinstance(value, types.FunctionType))
        own = vars(layer).get("forward")
        own = getattr(own, "__func__", own)
        if isinstance(own, types.FunctionType) and new(own):
            yield own


def may_change(value: Any) -> bool:
    """Tell what is looked into: it may change without an attribute of a module being set."""
    if isinstance(value, (list, dict, set)):
        return True
    return (
        hasattr(value, "__dict__")
        and not isinstance(value, (Tensor, nn.Module, type, types.FunctionType, types.MethodType, types.ModuleType))
        and type(value).__module__ != "builtins"
    )
