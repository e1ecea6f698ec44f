"""What a forward may branch on, as far as Python can see it: a call that differs in it is observed anew.

Attributes that are set are noticed where they are set. What can change unseen (lists and dicts on the module, a
configuration object, attributes of its class, global variables that its forward names) is looked at in every call.
"""

from __future__ import annotations

import enum
import itertools
import types
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..batch.tensor import BatchTensor
from ..structure import leaves
from .rows import Entry

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_TORCHS = frozenset(vars(nn.Module())) - {"training"}  # parameters, layers and hooks, told by other means
_MOST_STATES = 256  # that are remembered
_DEPTH = 4  # of nested containers that are looked into


class Fingerprints:
    """Tells apart the states of modules and the forms of calls."""

    def __init__(self) -> None:
        """Start with nothing seen."""
        self.changes = 0  # attributes set on modules so far, tensors left out
        self._next = itertools.count()
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._states: dict[tuple[Any, ...], int] = {}
        self._known: weakref.WeakKeyDictionary[nn.Module, tuple[int, int, list[Any]]] = weakref.WeakKeyDictionary()

    def noted(self, value: Any) -> None:
        """An attribute of some module was set."""
        if not isinstance(value, Tensor):
            self.changes += 1

    def of(self, module: nn.Module) -> tuple[Any, ...]:
        """Fingerprint a module: its layers, their modes and what they hold. Asked at every call."""
        known = self._known.get(module)
        if known is None or known[0] != self.changes:
            layers = list(module.modules())
            state = tuple(self._state(layer) for layer in layers)
            known = self._known[module] = self.changes, self._short(state), list(_changeable(layers))
        return (known[1], *filter(None, map(self._content, known[2])))

    def close(self) -> None:
        """Let go of classes and functions of the script."""
        self._known.clear()
        self._states.clear()

    def of_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any], entry: Entry) -> tuple[Any, ...]:
        """Fingerprint the form of a call: its structure, plain values, and what is a batch; not sizes."""
        cut = [leaf for _, leaf in leaves((entry.args, entry.kwargs))]
        given = leaves((args, kwargs))
        return tuple((path, self._form(leaf, own)) for (path, leaf), own in zip(given, cut, strict=True))

    @staticmethod
    def sizes(entry: Entry) -> tuple[Any, ...]:
        """Sizes of a call's tensors, but for the number of rows."""
        own = set(entry.layout.counts)
        tensors = [leaf for _, leaf in leaves((entry.args, entry.kwargs)) if isinstance(leaf, Tensor)]
        return tuple(tuple(-1 if size in own else size for size in tensor.shape) for tensor in tensors)

    def _short(self, state: tuple[Any, ...]) -> int:
        """A number for a state, the same one when it comes back. Not its hash: that of -1 is that of -2."""
        if state not in self._states:
            if len(self._states) == _MOST_STATES:  # an attribute changes in every step
                self._states.clear()
            self._states[state] = next(self._next)
        return self._states[state]

    def _state(self, layer: nn.Module) -> tuple[Any, ...]:
        held = ((name, value) for name, value in vars(layer).items() if name not in _TORCHS)
        # The layer itself: another one in its place is another module.
        return self._number(layer), *((name, self._value(value)) for name, value in held)

    def _content(self, thing: Any) -> Any:
        if isinstance(thing, types.FunctionType):
            return tuple((name, self._value(value)) for name, value in _seen_from(thing))
        if isinstance(thing, (list, dict, set)):
            return self._value(thing)
        held = ((name, value) for name, value in vars(thing).items() if name[:2] != "__")
        return tuple((name, type(value), value) for name, value in held if type(value) in _PLAIN)

    def _value(self, value: Any, depth: int = 0) -> Any:
        if type(value) in _PLAIN:
            return type(value), value  # 1, 1.0 and True are equal
        if isinstance(value, Tensor) or depth == _DEPTH:
            return None
        if isinstance(value, enum.Enum):
            return type(value).__qualname__, value.name
        if isinstance(value, (list, tuple, set)):
            return tuple(self._value(item, depth + 1) for item in value)
        if isinstance(value, dict):
            return tuple((self._value(key), self._value(item, depth + 1)) for key, item in value.items())
        if hasattr(value, "dtype") and hasattr(value, "item"):  # a numpy number or array
            return repr(value)
        return self._number(value)

    def _number(self, thing: Any) -> Any:
        # Not id(): memory that was freed is used again, and not alike on all ranks.
        if isinstance(thing, types.MethodType):  # made anew each time it is asked for
            return self._number(thing.__func__), self._number(thing.__self__)
        try:
            if thing not in self._numbers:
                self._numbers[thing] = next(self._next)
            return self._numbers[thing]
        except TypeError:  # cannot be hashed, or not referred to weakly
            return type(thing).__qualname__

    def _form(self, leaf: Any, own: Any) -> Any:
        if isinstance(leaf, Tensor):
            wants_grad = leaf.requires_grad and torch.is_grad_enabled()
            at = leaf._layout.dim if isinstance(leaf, BatchTensor) else -1
            return at, own.shape != leaf.shape, leaf.dim(), leaf.dtype, wants_grad
        return type(leaf), self._value(leaf)


def _changeable(layers: list[nn.Module]) -> Iterator[Any]:
    """Things that layers may branch on and that change without an attribute being set, each once."""
    seen: set[int] = set()

    def new(thing: Any) -> bool:
        before = len(seen)
        seen.add(id(thing))
        return len(seen) > before

    for layer in layers:
        for name, value in vars(layer).items():
            if name not in _TORCHS and _may_change(value) and new(value):
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


def _may_change(value: Any) -> bool:
    if isinstance(value, (list, dict, set)):
        return True
    return (
        hasattr(value, "__dict__")
        and not isinstance(value, (Tensor, nn.Module, type, types.FunctionType, types.MethodType, types.ModuleType))
        and type(value).__module__ != "builtins"
    )


def _seen_from(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Plain global variables that a function names, and those it closes over."""
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if value is not None and (type(value) in _PLAIN or type(value) in (list, dict)):
            yield name, value
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # not bound yet
            continue
        if type(value) in _PLAIN:
            yield name, value
