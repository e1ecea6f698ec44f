"""What a forward may branch on, as far as Python can see it: a call that differs in it is judged anew."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from ..batch.tensor import BatchTensor
from ..structure import leaves
from .rows import Entry

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class Fingerprints:
    """Tells apart the states of modules and the forms of calls."""

    def __init__(self) -> None:
        """Start with nothing seen."""
        self.changes = 0  # attributes set on modules so far, tensors left out
        self._next = itertools.count()
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._known: weakref.WeakKeyDictionary[nn.Module, tuple[int, int]] = weakref.WeakKeyDictionary()

    def noted(self, value: Any) -> None:
        """An attribute of some module was set."""
        if not isinstance(value, Tensor):
            self.changes += 1

    def of(self, module: nn.Module) -> int:
        """Fingerprint a module: its layers, their modes and their plain attributes. Asked at every call."""
        known = self._known.get(module)
        if known is not None and known[0] == self.changes:
            return known[1]
        found = hash(tuple(self._state(layer) for layer in module.modules()))
        self._known[module] = self.changes, found
        return found

    def _state(self, layer: nn.Module) -> tuple[Any, ...]:
        held = ((name, value) for name, value in vars(layer).items() if name[:1] != "_" or type(value) in _PLAIN)
        # The layer itself: another one in its place is another module.
        return self._number(layer), *((name, self._value(value)) for name, value in held)

    def _value(self, value: Any) -> Any:
        if type(value) in _PLAIN:
            return value
        if isinstance(value, Tensor):
            return None
        if isinstance(value, (list, tuple)):
            return tuple(self._value(item) for item in value)
        return self._number(value)

    def _number(self, thing: Any) -> Any:
        # Not id(): memory that was freed is used again, and not alike on all ranks.
        thing = getattr(thing, "__func__", thing)  # a bound method is made anew each time it is asked for
        try:
            if thing not in self._numbers:
                self._numbers[thing] = next(self._next)
            return self._numbers[thing]
        except TypeError:  # cannot be hashed, or not referred to weakly
            return type(thing).__qualname__

    @staticmethod
    def of_arguments(args: tuple[Any, ...], kwargs: dict[str, Any], entry: Entry) -> int:
        """Fingerprint the form of a call: its structure, plain values, and what is a batch; not sizes."""
        cut = [leaf for _, leaf in leaves((entry.args, entry.kwargs))]
        given = list(leaves((args, kwargs)))
        if len(cut) != len(given):  # an entry never changes a structure
            return 0
        return hash(tuple((path, _form(leaf, own)) for (path, leaf), own in zip(given, cut, strict=True)))


def _form(leaf: Any, own: Any) -> Any:
    if isinstance(leaf, Tensor):
        is_cut = own.shape != leaf.shape
        return type(leaf) is BatchTensor, is_cut, leaf.dim(), leaf.dtype, leaf.requires_grad and torch.is_grad_enabled()
    return (type(leaf), leaf) if type(leaf) in _PLAIN else type(leaf)
