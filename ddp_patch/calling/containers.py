"""Lists, dicts, dataclasses and caches that a call is given: what its forward puts into them, the script finds.

So is what it takes out. A forward on rows gets others, which hold its rows; so does one on batches, where plain tensors
were dealt. Caches are those of transformers, for keys and values.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import wrapt
from torch import Tensor

from ..structure import Opened, fields_of, is_container, map_items, map_leaves


def _open(names: tuple[str, ...], module: Any) -> None:
    kinds = (getattr(module, name, None) for name in names)
    Opened.kinds = (*Opened.kinds, *(kind for kind in kinds if isinstance(kind, type)))


_OF_TRANSFORMERS = {  # 4.36 and later: keys and values, and what tokenizers and their like give
    "cache_utils": ("Cache", "CacheLayerMixin", "LinearAttentionCacheLayerMixin"),
    "tokenization_utils_base": ("BatchEncoding",),
    "feature_extraction_utils": ("BatchFeature",),
}
for _module, _names in _OF_TRANSFORMERS.items():
    wrapt.register_post_import_hook(functools.partial(_open, _names), f"transformers.{_module}")

Content = tuple[Any, dict[str, Any]]  # items, of lists and dicts, and attributes


class ArgumentRef(int):
    """The number of a thing among the arguments of a call, in its place."""


class Containers:
    """Those among the arguments of one call, and what they held before it."""

    def __init__(self, own: tuple[Any, Any], given: tuple[Any, Any]) -> None:
        """Note what they hold.

        Args:
            own: arguments of a call, as the script has them.
            given: the same, as its forward gets them.
        """
        self._held: list[tuple[Any, Content, Any, Content]] = []
        self._numbers: dict[int, ArgumentRef] = {}  # by the identity of what the forward gets
        self._things: list[Any] = []  # the script's own
        self._wrote = False
        for values, theirs in ((own[0], given[0]), (own[1].values(), given[1].values())):
            for value, its in zip(values, theirs, strict=True):
                if is_container(its):
                    self._note(value, its)

    def _note(self, own: Any, given: Any) -> None:
        if id(given) in self._numbers:
            return
        self._numbers[id(given)] = ArgumentRef(len(self._things))
        self._things.append(own)
        if isinstance(given, Tensor) or not is_container(own):  # packed sequences
            return
        (items, attributes), (its_items, its_attributes) = _content(own), _content(given)
        if not isinstance(given, tuple):
            self._held.append((own, (items, attributes), given, (its_items, its_attributes)))
        for value, its in zip(_each(items, attributes), _each(its_items, its_attributes), strict=True):
            if isinstance(its, Tensor) or is_container(its):
                self._note(value, its)

    def with_writes(self, outputs: Any) -> Any:
        """Give the outputs of the forward, along with what it wrote to containers, if it did.

        What it was given is a number there: ``returned`` puts the script's own in its place.
        """
        if not self._held:
            return outputs
        held = [(place, _content(given), before) for place, (_, _, given, before) in enumerate(self._held)]
        wrote = {place: self._numbered(now, tensors=True) for place, now, before in held if not _is(now, before)}
        self._wrote = bool(wrote)
        outputs = self._numbered(outputs, tensors=False)
        return (outputs, wrote) if wrote else outputs

    def _numbered(self, value: Any, tensors: bool) -> Any:
        if id(value) in self._numbers and (tensors or not isinstance(value, Tensor)):
            return self._numbers[id(value)]
        return map_items(lambda item: self._numbered(item, tensors), value)

    def write_back(self, told: Any) -> Any:
        """Write to the script's containers what the forward wrote to its own, and give its outputs.

        Args:
            told: what ``told`` gave, with batches of its rows.
        """
        if not self._held:
            return told
        told = map_leaves(lambda leaf: self._things[leaf] if type(leaf) is ArgumentRef else leaf, told)
        if not self._wrote:
            return told
        outputs, wrote = told
        for place, content in wrote.items():
            _fill(self._held[place][0], content)
        return outputs

    def put_back(self) -> None:
        """Let the script's containers hold what they held before the call."""
        for own, before, _, _ in self._held:
            if not _is(_content(own), before):
                _fill(own, before)

    @contextmanager
    def as_before(self) -> Iterator[None]:
        """Surround what is to find the script's containers as they were before the call."""
        now = [(own, _content(own)) for own, _, _, _ in self._held]
        self.put_back()
        try:
            yield
        finally:
            for own, content in now:
                _fill(own, content)


def _content(container: Any) -> Content:
    attributes = dict(_namespace(container))
    if isinstance(container, (list, tuple)):
        return list(container), attributes
    if isinstance(container, dict):
        return dict(container.items()), attributes
    return [], attributes | (fields_of(container) or {})


def _namespace(container: Any) -> dict[str, Any]:
    held = getattr(container, "__dict__", container)
    return {} if held is container else held  # has slots, or its items are its attributes


def _each(items: Any, attributes: dict[str, Any]) -> list[Any]:
    return [*(items.values() if isinstance(items, dict) else items), *attributes.values()]


def _is(left: Content, right: Content) -> bool:
    """Tell whether two contents are the same things in the same order."""
    (items, attributes), (others, theirs) = left, right
    return (
        len(items) == len(others)
        and attributes.keys() == theirs.keys()
        and all(map(operator.is_, items, others))  # keys of dicts
        and all(map(operator.is_, _each(*left), _each(*right)))
    )


def _fill(container: Any, content: Content) -> None:
    """Write to a container past what its class makes of that: its content was written to one like it."""
    items, attributes = content
    if isinstance(container, list):
        list.__setitem__(container, slice(None), items)
    elif isinstance(container, dict):
        kind = collections.OrderedDict if isinstance(container, collections.OrderedDict) else dict
        kind.clear(container)
        for key, item in items.items():
            kind.__setitem__(container, key, item)
    namespace = _namespace(container)
    for name in [name for name in namespace if name not in attributes]:
        del namespace[name]
    for name, value in attributes.items():
        if name in namespace or not dataclasses.is_dataclass(container):
            namespace[name] = value
        else:
            object.__setattr__(container, name, value)
