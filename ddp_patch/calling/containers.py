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

    def __init__(self, original: tuple[Any, Any], passed: tuple[Any, Any]) -> None:
        """Note what they hold.

        Args:
            original: arguments of a call, as the script has them.
            passed: the same, as its forward gets them.
        """
        self.entries: list[tuple[Any, Content, Any, Content]] = []
        self._numbers: dict[int, ArgumentRef] = {}  # by the identity of what the forward gets
        self._things: list[Any] = []  # the script's own
        self._wrote = False
        for values, theirs in ((original[0], passed[0]), (original[1].values(), passed[1].values())):
            for value, its in zip(values, theirs, strict=True):
                if not isinstance(its, Tensor) and is_container(its):
                    self._note(value, its)

    def _note(self, original: Any, passed: Any) -> None:
        if id(passed) in self._numbers:
            return
        self._numbers[id(passed)] = ArgumentRef(len(self._things))
        self._things.append(original)
        if isinstance(passed, Tensor) or not is_container(original):  # packed sequences
            return
        (items, attributes), (its_items, its_attributes) = _content(original), _content(passed)
        if not isinstance(passed, tuple):
            self.entries.append((original, (items, attributes), passed, (its_items, its_attributes)))
        for value, its in zip(_each(items, attributes), _each(its_items, its_attributes), strict=True):
            if isinstance(its, Tensor) or is_container(its):
                self._note(value, its)

    def with_writes(self, outputs: Any) -> Any:
        """Give the outputs of the forward, along with what it wrote to containers, if it did.

        What it was given is a number there: ``write_back`` puts the script's own in its place.
        """
        if not self.entries:
            return outputs
        contents = [(place, _content(passed), before) for place, (_, _, passed, before) in enumerate(self.entries)]
        wrote = {place: self._numbered(now, tensors=True) for place, now, before in contents if not _is(now, before)}
        self._wrote = bool(wrote)
        outputs = self._numbered(outputs, tensors=False)
        return (outputs, wrote) if wrote else outputs

    def _numbered(self, value: Any, tensors: bool) -> Any:
        if id(value) in self._numbers and (tensors or not isinstance(value, Tensor)):
            return self._numbers[id(value)]
        return map_items(lambda item: self._numbered(item, tensors), value)

    def write_back(self, result: Any) -> Any:
        """Write to the script's containers what the forward wrote to its own, and give its outputs.

        Args:
            result: what ``with_writes`` gave, with batches of its rows.
        """
        if not self.entries:
            return result
        result = map_leaves(lambda leaf: self._things[leaf] if type(leaf) is ArgumentRef else leaf, result)
        if not self._wrote:
            return result
        outputs, wrote = result
        for place, content in wrote.items():
            _fill(self.entries[place][0], content)
        return outputs

    def put_back(self) -> None:
        """Let the script's containers hold what they held before the call."""
        for original, before, _, _ in self.entries:
            if not _is(_content(original), before):
                _fill(original, before)

    @contextmanager
    def as_before(self) -> Iterator[None]:
        """Surround what is to find the script's containers as they were before the call."""
        now = [(original, _content(original)) for original, _, _, _ in self.entries]
        self.put_back()
        try:
            yield
        finally:
            for original, content in now:
                _fill(original, content)


def _content(container: Any) -> Content:
    attributes = dict(_namespace(container))
    if isinstance(container, (list, tuple)):
        return list(container), attributes
    if isinstance(container, dict):
        return dict(container.items()), attributes
    return [], attributes | (fields_of(container) or {})


def _namespace(container: Any) -> dict[str, Any]:
    namespace = getattr(container, "__dict__", container)
    return {} if namespace is container else namespace  # has slots, or its items are its attributes


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
