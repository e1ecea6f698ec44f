"""Walk the nested containers that scripts pass around: lists, tuples, named tuples, dicts, dataclasses."""

from __future__ import annotations

import collections
import copy
import dataclasses
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor


class Opaque:
    """A container that is handed on as one thing."""


PIECE = 2**20  # entries
_NO_CONTAINERS = (Tensor, Opaque, int, float, str, type(None))


def map_leaves(function: Callable[[Any], Any], value: Any, memo: dict[int, Any] | None = None) -> Any:
    """Rebuild a structure with ``function`` applied to every leaf; an unchanged structure is returned as it is.

    Containers keep their type (a named tuple stays one, a dict subclass keeps its attributes), and one that is there
    twice is one.

    Args:
        function: of a leaf.
        value: a structure.
        memo: what became of containers before, by identity, in other structures that this one has some in common with.
    """
    if isinstance(value, _NO_CONTAINERS):
        return function(value)
    if memo is None:
        memo = {}
    elif id(value) in memo:
        return memo[id(value)]
    kind = type(value)
    if kind is tuple or kind is list:  # in every step
        items = [
            function(item) if isinstance(item, _NO_CONTAINERS) else map_leaves(function, item, memo) for item in value
        ]
        result = value if all(map(operator.is_, items, value)) else kind(items)
    elif kind is dict and not value:
        result = value
    elif is_container(value):
        result = map_items(lambda item: map_leaves(function, item, memo), value)
    else:
        return function(value)
    memo[id(value)] = result
    return result


def map_items(function: Callable[[Any], Any], value: Any) -> Any:
    """Rebuild one container with ``function`` applied to its items; anything else is returned as it is."""
    if isinstance(value, _NO_CONTAINERS):
        return value
    if isinstance(value, (list, tuple)):
        return _map_sequence(function, value) if value else value
    if isinstance(value, dict):
        changed = {key: function(item) for key, item in value.items()}
        if all(changed[key] is item for key, item in value.items()):
            return value
        if type(value) is dict:
            return changed
        return _like(value, changed)
    if (fields := fields_of(value)) is not None:
        changed = {name: function(item) for name, item in fields.items()}
        if all(changed[name] is item for name, item in fields.items()):
            return value
        clone: Any = copy.copy(value)
        if clone is value:  # its class says so
            return value
        for name, item in changed.items():
            object.__setattr__(clone, name, item)
        return clone
    return value


def _like(value: dict[Any, Any], changed: dict[Any, Any]) -> Any:
    """Give a dict of the same class with other entries, which may be its attributes as well (ModelOutput, AttrDict)."""
    try:
        twin = copy.copy(value)
    except TypeError:  # a dataclass with required fields cannot be made empty
        twin = type(value)(**changed)
    for key, item in changed.items():
        twin[key] = item
    if getattr(value, "__dict__", None) is value:
        twin.__dict__ = twin
        return twin
    attributes = getattr(twin, "__dict__", {})
    for key, item in changed.items():
        if isinstance(key, str) and attributes.get(key) is value[key]:
            attributes[key] = item
    return twin


def is_container(value: Any) -> bool:
    """Tell lists, tuples, dicts, and instances of dataclasses and of what a library has for one."""
    if isinstance(value, _NO_CONTAINERS):
        return False
    if isinstance(value, (list, tuple, dict, Opened.kinds)):
        return True
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


class Opened:
    """Classes of libraries whose instances hold tensors, and are looked into as dataclasses are."""

    kinds: tuple[type, ...] = ()


def fields_of(value: Any) -> dict[str, Any] | None:
    """Give what a dataclass's instance holds, or one of an opened class, by name; None of anything else."""
    if isinstance(value, Opened.kinds):
        return dict(vars(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


_BUILT_IN = (collections.OrderedDict, dict, list, tuple, set, frozenset, collections.deque, bytearray)


def built_in(container: Any) -> Any:
    """Give the class of Python's that a container's class is made of, which looks into it past what its own would do.

    e3nn's ``Irrep`` is a tuple whose ``__len__`` raises.
    """
    kind = type(container)
    return kind if kind in _BUILT_IN else next(base for base in _BUILT_IN if isinstance(container, base))


def items_in(container: Any) -> list[Any]:
    """Give what a list, a tuple or a set holds; of a set, in an order that does not depend on addresses."""
    items = [*built_in(container).__iter__(container)]
    return sorted(items, key=repr) if isinstance(container, (set, frozenset)) else items


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """Give every leaf with the path that leads to it, such as ``[0]['mask']``."""
    if isinstance(value, _NO_CONTAINERS):  # asked in every step
        return [(path, value)]
    found: list[tuple[str, Any]] = []
    _collect(value, path, found)
    return found


def strided(tensor: Tensor) -> list[Tensor]:
    """Give what a tensor holds as tensors that have memory: of a sparse one, its indices and its values."""
    if tensor.layout is torch.strided:
        return [tensor]
    entries = tensor.to_sparse().coalesce()
    return [entries.indices(), entries.values()]


def pieces(tensor: Tensor) -> tuple[Tensor, ...]:
    """Give a tensor's entries in pieces of one dimension, for what would make several copies of a large one."""
    found: tuple[Tensor, ...] = tensor.flatten().split(PIECE)
    return found


def _collect(value: Any, path: str, found: list[tuple[str, Any]]) -> None:
    if isinstance(value, _NO_CONTAINERS):
        found.append((path, value))
    elif isinstance(value, (list, tuple)):
        names = getattr(value, "_fields", None)
        for index, item in enumerate(value):
            at = f"{path}.{names[index]}" if names else f"{path}[{index}]"
            if isinstance(item, _NO_CONTAINERS):  # in every step
                found.append((at, item))
            elif type(item) is not dict or item:
                _collect(item, at, found)
    elif isinstance(value, dict):
        for key, item in value.items():
            _collect(item, f"{path}[{key!r}]", found)
    elif (fields := fields_of(value)) is not None:
        for name, item in fields.items():
            _collect(item, f"{path}.{name}", found)
    else:
        found.append((path, value))


def _map_sequence(function: Callable[[Any], Any], value: Any) -> Any:
    items = [function(item) for item in value]
    if all(map(operator.is_, items, value)):
        return value
    kind = type(value)
    if kind in (list, tuple):
        return kind(items)
    if hasattr(value, "_fields"):
        return kind(*items)
    return kind(items)  # torch.Size, torch.return_types.*, a list subclass


def nodes_of(value: Any) -> list[Any]:
    """Give the nodes of the graph that the tensors in a structure were computed by."""
    found = [leaf.grad_fn for _, leaf in leaves(value) if isinstance(leaf, Tensor)]
    return [node for node in found if node is not None]


def leaves_below(nodes: Iterable[Any], but: Iterable[Any] = ()) -> Iterator[Tensor]:
    """Yield the tensors that a graph accumulates gradients into.

    Args:
        nodes: of the graph, where gradients come in.
        but: nodes that are not gone past.
    """
    seen = set(but)
    stack = [node for node in nodes if node not in seen]
    seen.update(stack)
    while stack:
        for child, _ in stack.pop().next_functions:
            if child is None or child in seen:
                continue
            seen.add(child)
            stack.append(child)
            if hasattr(child, "variable"):
                yield child.variable
