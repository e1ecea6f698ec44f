"""Generators that a loader's dataset or collate function holds, which a reader carries over to other ranks."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import torch

from ..generators import kinds, set_states, states
from .held import held_by


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


def own_generators(loader: Any) -> list[Any]:
    """Find generators that a dataset or a collate function holds: both may share them with the script.

    In an order that is the same on every rank.
    """
    # Those behind the functions of torch and random are carried over anyway.
    known = (torch.default_generator, random.getrandbits.__self__)  # type: ignore[attr-defined]
    return held_by(loader, kinds(), known)
