"""What modules and classes hold beside what torch and Python put there, and what of it is another one since."""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType
from typing import Any

from torch import nn

from .picklers import Back, is_hooks

_TORCHS = ("training", "_parameters", "_buffers", "_modules")
_ATOMS = (int, float, bool, str, type(None))


def attributes_of(each: nn.Module | type) -> dict[str, Any]:
    """Give its attributes, by name: of a class those that are neither methods nor Python's."""
    if isinstance(each, nn.Module):
        return {name: value for name, value in vars(each).items() if name not in _TORCHS and not is_hooks(name)}
    return {
        name: value
        for name, value in vars(each).items()
        if not (name.startswith("_") and name.endswith("_")) and name != "_abc_impl" and not hasattr(value, "__get__")
    }


class Prints:
    """What attributes look like at one time."""

    def __init__(self, numbers: Mapping[int, int]) -> None:
        """Nothing is seen yet.

        Args:
            numbers: of what came with the call, whose changes are noted for themselves.
        """
        self._numbers = numbers
        self._seen: dict[int, tuple[Any, Any]] = {}  # layers share their model's configuration

    def of(self, each: nn.Module | type) -> dict[str, Any]:
        """Give a print of each attribute, None where it does not pickle."""
        return {name: self.one(value) for name, value in attributes_of(each).items()}

    def one(self, value: Any) -> Any:
        """Give a print of one thing."""
        if type(value) in _ATOMS:
            return type(value), value
        if id(value) not in self._seen:
            try:
                self._seen[id(value)] = value, hash(_Print(self._numbers).packed(value, to_host=True))
            except Exception:  # noqa: BLE001 — pickling runs foreign code
                self._seen[id(value)] = value, None
        return self._seen[id(value)][1]


class _Print(Back):
    """Functions are themselves, whatever they refer to."""

    def persistent_id(self, obj: Any) -> Any:
        return id(obj) if isinstance(obj, FunctionType) else super().persistent_id(obj)
