"""What code mentions, and where it keeps what it uses."""

from __future__ import annotations

import dis
import functools
import itertools
import types
from collections.abc import Iterable
from typing import Any

from .standing import MISSING


def content_of(cell: Any, *_: Any) -> Any:
    """What a cell of a closure holds, or ``MISSING``."""
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return MISSING


def slots_of(kind: type) -> Iterable[str]:
    """Names that a class gives its instances a slot for."""
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else [name for name in slots if name[:2] != "__"]


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> tuple[tuple[str, ...], frozenset[str]]:
    """Names that a function and those inside it look up in its module, and all that they mention.

    ``self.step`` mentions ``step``, and does not look it up: a script may well count in a variable of that name.
    """
    codes = [code]
    for inner in codes:
        codes += [constant for constant in inner.co_consts if isinstance(constant, types.CodeType)]
    looked_up = dict.fromkeys(
        step.argval for inner in codes for step in dis.get_instructions(inner) if step.opname in _LOOKS_UP
    )
    names = itertools.chain.from_iterable(inner.co_names for inner in codes)
    texts = (constant for inner in codes for constant in inner.co_consts if isinstance(constant, str))
    return tuple(looked_up), frozenset(names) | frozenset(text for text in texts if text.isidentifier())


# Instructions of CPython 3.10 to 3.14: in functions, in bodies of classes, and of what is imported again.
_LOOKS_UP = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "IMPORT_NAME"}


def difference(before: Any, after: Any, name: str = "") -> str:
    """Give the innermost name in front of what differs in two contents, which are tuples in tuples; "" for none.

    Args:
        before: one content.
        after: the other.
        name: that stands in front of these.
    """
    if type(before) is not tuple or type(after) is not tuple or len(before) != len(after):
        return name
    if len(before) == 2 and before[0] == after[0] and isinstance(before[0], str):
        name = before[0]
    pairs = zip(before, after, strict=True)
    return next((difference(one, other, name) for one, other in pairs if one != other), name)
