"""The walk through containers: their items, and what a container of the script's own kind holds beside them."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..calling.scripts_code import is_own
from ..structure import built_in, items_in

if TYPE_CHECKING:
    from .walk import Walk

PLAIN = (bool, int, float, complex, str, bytes, type(None))
MOST_ITEMS = 1024  # of a container, whose items are walked; those of a longer one are told by identity


def _sequence(walk: Walk, thing: Iterable[Any], depth: int) -> Any:
    if not isinstance(thing, (tuple, frozenset)):
        walk.standing.container(thing)
    items = items_in(thing)
    contents = type(thing).__name__, tuple(map(_item(walk, items), items, itertools.repeat(depth)))
    return (*contents, walk.instance(thing, depth)) if is_own(type(thing)) else contents


def _mapping(walk: Walk, thing: dict[Any, Any], depth: int) -> Any:
    walk.standing.container(thing)
    items = [*built_in(thing).items(thing)]
    walked = _item(walk, items)
    contents = tuple((walked(key, depth), walked(item, depth)) for key, item in items)
    if isinstance(thing, collections.defaultdict):
        contents = (*contents, walk.over(thing.default_factory, depth))
    return (*contents, walk.instance(thing, depth)) if is_own(type(thing)) else contents


def _item(walk: Walk, container: Any) -> Callable[[Any, int], Any]:
    """Give what walks the items of a container: those of a long one, as a lexicon, are told by identity."""
    if len(container) <= MOST_ITEMS:
        return walk.over
    return lambda item, _: (type(item), item if type(item) in PLAIN else id(item))


# kinds -> how one of them is walked
WALKS: tuple[tuple[Any, Callable[[Walk, Any, int], Any]], ...] = (
    (dict, _mapping),
    ((list, tuple, set, frozenset, collections.deque, bytearray), _sequence),
    ((collections.UserDict, collections.UserList), lambda walk, thing, depth: walk.over(thing.data, depth)),
)
