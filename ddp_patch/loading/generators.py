"""Where the script's generators stand: torch's, random's and numpy's, which a reader carries over to other ranks."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def undrawn(generator: torch.Generator | None) -> Iterator[None]:
    """Leave all generators as they were."""
    before, own = states(), generator.get_state() if generator is not None else None
    try:
        yield
    finally:
        set_states(before)
        if generator is not None and own is not None:
            generator.set_state(own)


def states() -> list[Any]:
    """Where they stand."""
    numpy = sys.modules.get("numpy")
    return [torch.get_rng_state(), random.getstate(), numpy and numpy.random.get_state()]


def same(left: list[Any], right: list[Any]) -> bool:
    """Tell whether nothing was drawn between two states."""
    if not torch.equal(left[0], right[0]) or left[1] != right[1]:
        return False
    if left[2] is None or right[2] is None:
        return left[2] is right[2]
    return left[2][2:] == right[2][2:] and bool((left[2][1] == right[2][1]).all())


def set_states(held: list[Any]) -> None:
    """Go on from there."""
    torch.set_rng_state(held[0])
    random.setstate(held[1])
    if held[2] is not None:
        sys.modules["numpy"].random.set_state(held[2])
