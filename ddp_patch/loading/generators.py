"""Generators that a loader's dataset or collate function holds, which a reader carries over to other ranks."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch

from ..generators import set_states, states
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


_KINDS = (torch.Generator, random.Random)


def own_generators(loader: Any) -> list[Any]:
    """Find generators that a dataset or a collate function holds: both may share them with the script.

    In an order that is the same on every rank.
    """
    numpy = sys.modules.get("numpy")
    kinds = (*_KINDS, numpy.random.Generator, numpy.random.RandomState) if numpy else _KINDS
    # Those behind the functions of torch and random are carried over anyway.
    known = (torch.default_generator, random.getrandbits.__self__)  # type: ignore[attr-defined]
    return held_by(loader, kinds, known)


def state_of(generator: Any) -> Any:
    """Where a generator stands."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    bits = getattr(generator, "bit_generator", None)
    return generator.get_state() if bits is None else bits.state


def set_state_of(generator: Any, state: Any) -> None:
    """Have a generator go on from there."""
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    elif getattr(generator, "bit_generator", None) is None:
        generator.set_state(state)
    else:
        generator.bit_generator.state = state
