"""Where the generators that scripts draw from stand: torch's on the host, random's and numpy's."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch


def states() -> list[Any]:
    """Where they stand."""
    numpy = sys.modules.get("numpy")
    return [torch.default_generator.get_state(), random.getstate(), numpy and numpy.random.get_state()]


def same(left: list[Any], right: list[Any]) -> bool:
    """Tell whether nothing was drawn between two states."""
    return torch.equal(left[0], right[0]) and same_beside_torch(left, right)


def same_beside_torch(left: list[Any], right: list[Any]) -> bool:
    """Tell whether nothing was drawn from Python's and NumPy's generator."""
    if left[1] != right[1]:
        return False
    if left[2] is None or right[2] is None:
        return left[2] is right[2]
    return left[2][2:] == right[2][2:] and bool((left[2][1] == right[2][1]).all())


def set_states(held: list[Any]) -> None:
    """Go on from there."""
    torch.default_generator.set_state(held[0])
    random.setstate(held[1])
    if held[2] is not None:
        sys.modules["numpy"].random.set_state(held[2])


@contextlib.contextmanager
def same_draws() -> Iterator[Callable[[], None]]:
    """Give a function that sets the generators back to where they are now."""
    held = states()
    yield lambda: set_states(held)
