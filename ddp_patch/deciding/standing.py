"""What stood in the places that a forward may look at, for comparison by identity."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch import Tensor

MISSING = object()


class Standing:
    """What was found, and where."""

    def __init__(self) -> None:
        """Start with nothing found."""
        self.is_endless = False  # something cannot be compared
        self.generators: list[Any] = []  # of the script's own
        self._places: list[tuple[Callable[..., Any], Any, Any]] = []
        self._sizes: list[tuple[Any, int]] = []
        self._containers: list[tuple[Any, Any]] = []
        self._numbers: list[tuple[Any, bytes]] = []
        self._flags: list[tuple[Tensor, bool]] = []

    def place(self, get: Callable[..., Any], name: Any, value: Any) -> None:
        """Note what ``get(name, MISSING)`` gives."""
        self._places.append((get, name, value))

    def size(self, namespace: Any) -> None:
        """Note how many names there are."""
        self._sizes.append((namespace, len(namespace)))

    def container(self, thing: Any, copy: Any) -> None:
        """Note what a container holds, in its order."""
        self._containers.append((thing, copy))

    def number(self, array: Any, seen: bytes) -> None:
        """Note the content of an array of NumPy."""
        self._numbers.append((array, seen))

    def flag(self, tensor: Tensor) -> None:
        """Note whether a tensor wants a gradient."""
        self._flags.append((tensor, tensor.requires_grad))

    def is_as_found(self) -> bool:
        """Tell whether all of it still stands where it stood."""
        if self.is_endless:
            return False
        for get, name, seen in self._places:
            if get(name, MISSING) is not seen:
                return False
        for thing, size in self._sizes:
            if len(thing) != size:
                return False
        for thing, copy in self._containers:
            if not _holds(thing, copy):
                return False
        for tensor, flag in self._flags:
            if tensor.requires_grad is not flag:
                return False
        return all(array.tobytes() == seen for array, seen in self._numbers)


def _holds(thing: Any, copy: Any) -> bool:
    if len(thing) != len(copy):
        return False
    if isinstance(thing, set):
        return bool(thing == copy)
    if isinstance(thing, dict):
        return all(map(operator.is_, thing, copy)) and all(map(operator.is_, thing.values(), copy.values()))
    return all(map(operator.is_, thing, copy))
