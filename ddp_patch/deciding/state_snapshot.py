"""What stood in the places that a forward may look at, for comparison by identity."""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
import operator
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..structure import built_in

MISSING = object()
_SAMPLED = 2**16  # bytes of an array above which some of its entries stand for all
_SAMPLES = 1024
_SMALL = 4096  # numbers of a tensor that is put back


class StateSnapshot:
    """What was found, and where."""

    def __init__(self) -> None:
        """Start with nothing found."""
        self.is_endless = False  # something cannot be compared
        self.generators: list[Any] = []  # of the script's own
        self._places: list[tuple[Callable[..., Any], Any, Any, Callable[..., Any]]] = []
        self._sizes: list[tuple[Any, int]] = []
        self._containers: list[tuple[Any, Any, Any]] = []  # with Python's class, and what was in it
        self._numbers: list[tuple[Any, bytes]] = []
        self._flags: list[tuple[Tensor, bool]] = []
        self._versions: list[tuple[Tensor, int, Tensor | None]] = []

    def place(self, get: Callable[..., Any], name: Any, value: Any, put: Callable[..., Any] | None = None) -> None:
        """Note what ``get(name, MISSING)`` gives, and how it is put back, if not into the dictionary that is asked."""
        self._places.append((get, name, value, put or functools.partial(_put, get)))

    def size(self, namespace: Any) -> None:
        """Note how many names there are."""
        self._sizes.append((namespace, _count(namespace)))

    def container(self, thing: Any) -> None:
        """Note what a container holds, in its order."""
        kind = built_in(thing)
        self._containers.append((thing, kind, _copy_of(thing, kind)))

    def numbers_in(self, thing: Any) -> Any:
        """Note the content of an array, of NumPy's or Python's, and give it; None for what is none."""
        kind = next((name for name in ("dtype", "typecode") if hasattr(type(thing), name)), None)
        if kind is None:
            return None
        seen = sample_of(thing)
        self._numbers.append((thing, seen))
        return str(getattr(thing, kind)), getattr(thing, "shape", ()), hashlib.blake2b(seen).digest()

    def flag(self, tensor: Tensor) -> None:
        """Note whether a tensor wants a gradient."""
        self._flags.append((tensor, tensor.requires_grad))

    def along_with(self, other: StateSnapshot) -> StateSnapshot:
        """Give one for what was found in both."""
        both = StateSnapshot()
        for name, found in vars(both).items():
            if isinstance(found, list):
                found += vars(self)[name] + vars(other)[name]
        return both

    def noted(self) -> StateSnapshot:
        """Note how often each tensor was written to, and give this."""
        self._versions = [
            (tensor, tensor._version, tensor.detach().clone() if tensor.numel() <= _SMALL else None)
            for tensor, _ in self._flags
            if not tensor.is_inference()
        ]
        return self

    def was_written_to(self) -> bool:
        """Tell whether a call since then has written to a tensor, or put another thing somewhere."""
        return not self.stands() or any(tensor._version != version for tensor, version, _ in self._versions)

    def put_back(self) -> None:
        """Give places, containers and small tensors what they held."""
        for get, name, seen, put in self._places:
            if get(name, MISSING) is not seen:
                with contextlib.suppress(AttributeError, TypeError, KeyError):  # it takes none
                    put(name, seen)
        for tensor, version, saved in self._versions:
            if tensor._version != version and saved is not None and saved.shape == tensor.shape:
                tensor.data.copy_(saved)
        for thing, kind, copy in self._containers:
            if not _holds(thing, kind, copy):
                kind.clear(thing)
                (kind.extend if issubclass(kind, _IN_ORDER) else kind.update)(thing, copy)

    def is_as_found(self) -> bool:
        """Tell whether all of it still stands where it stood."""
        return not self.is_endless and self.stands()

    def stands(self) -> bool:
        """Tell that of what can be compared."""
        for get, name, seen, _ in self._places:
            if get(name, MISSING) is not seen:
                return False
        for thing, size in self._sizes:
            if len(thing) != size and _count(thing) != size:
                return False
        for thing, kind, copy in self._containers:
            if not _holds(thing, kind, copy):
                return False
        for tensor, flag in self._flags:
            if tensor.requires_grad is not flag:
                return False
        return not self._numbers or all(sample_of(array) == seen for array, seen in self._numbers)


def put_attribute(thing: Any, name: str, value: Any) -> None:
    """Put back what a place held that is no dictionary, if it held anything."""
    delattr(thing, name) if value is MISSING else setattr(thing, name, value)


def _put(get: Callable[..., Any], name: Any, value: Any) -> None:
    namespace = getattr(get, "__self__", None)
    if isinstance(namespace, dict) and value is not MISSING:
        namespace[name] = value
    elif isinstance(namespace, dict):
        del namespace[name]


def _count(namespace: Any) -> int:
    return len(namespace) - sum(name in namespace for name in PYTHONS)


# What Python puts into a class's namespace when somebody asks: copies and pickles, and whoever looks for annotations.
PYTHONS = ("__slotnames__", "__annotations__", "__annotations_cache__", "__annotate_func__")


def sample_of(array: Any) -> bytes:
    """Give the content of an array of NumPy or Python; of a large one, some of it."""
    size = getattr(array, "size", None)
    if size is None or array.nbytes <= _SAMPLED or array.dtype.hasobject:
        return bytes(array.tobytes())
    return bytes(array.flat[:: max(1, size // _SAMPLES)].tobytes())


_IN_ORDER = (list, collections.deque, bytearray)


def _copy_of(thing: Any, kind: Any) -> Any:
    if issubclass(kind, dict):
        return dict(kind.items(thing))
    return (set if kind is set else list)(kind.__iter__(thing))


def _holds(thing: Any, kind: Any, copy: Any) -> bool:
    if kind.__len__(thing) != len(copy):
        return False
    if kind is set:
        return bool(set.__eq__(thing, copy))
    if not all(map(operator.is_, kind.__iter__(thing), copy)):
        return False
    return not issubclass(kind, dict) or all(map(operator.is_, kind.values(thing), copy.values()))
