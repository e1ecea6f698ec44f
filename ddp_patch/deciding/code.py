"""What code mentions, and where it keeps what it uses."""

from __future__ import annotations

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
    """Names that a function and those inside it may look up in its module, and all that they mention."""
    codes = [code]
    for inner in codes:
        codes += [constant for constant in inner.co_consts if isinstance(constant, types.CodeType)]
    names = dict.fromkeys(itertools.chain.from_iterable(inner.co_names for inner in codes))
    texts = (constant for inner in codes for constant in inner.co_consts if isinstance(constant, str))
    return tuple(names), frozenset(names) | frozenset(text for text in texts if text.isidentifier())
