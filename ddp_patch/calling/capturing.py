"""Hooks by which models of transformers (5 and later) collect hidden states and attentions, to return them.

A model sets a collector up in its forward and hands out what its layers gave to it. So these hooks are a part of that
forward, and see what it computes on, as long as no collector of a forward around it is at work.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_WHERE = "transformers.utils.output_capturing"


def captures(hook: Any) -> bool:
    """Tell such a hook."""
    return getattr(hook, "__module__", None) == _WHERE and _collector() is not None


def is_capturing() -> bool:
    """Tell whether a forward that is running collects."""
    collector = _collector()
    return collector is not None and collector.get() is not None


@contextmanager
def not_capturing() -> Iterator[None]:
    """Surround what a forward that is running is not to collect from."""
    collector = _collector()
    if collector is None:
        yield
        return
    token = collector.set(None)
    try:
        yield
    finally:
        collector.reset(token)


def _collector() -> Any:
    return getattr(sys.modules.get(_WHERE), "_active_collector", None)
