"""Generators that a loader's dataset or collate function holds, which a reader carries over to other ranks."""

from __future__ import annotations

import contextlib
import random
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..generators import kinds, same_states, set_states, state_of, states
from .held import held_by, held_within


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
    return held_by(loader, kinds(), _known())


def _known() -> tuple[Any, Any]:
    """Those behind the functions of torch and random, which are carried over anyway."""
    return torch.default_generator, random.getrandbits.__self__  # type: ignore[attr-defined]


def as_the_readers(own: Sequence[Any], begun: Sequence[Any]) -> list[Any]:
    """Give this rank's generators for those that the reader holds, and None for each that only reading has made.

    Args:
        own: of this rank.
        begun: where the reader's stood as the epoch began.
    """
    if len(own) == len(begun):
        return list(own)
    left, found = [(each, state_of(each)) for each in own], []
    for state in begun:
        twin = next((each for each, its in left if type(its) is type(state) and same_states([its], [state])), None)
        left = [(each, its) for each, its in left if each is not twin]
        found.append(twin)
    return found


def seeds_in(dataset: Any) -> list[str]:
    """Tell the seeds of the generators that a dataset holds."""
    return [_seed_of(each) for each in held_within([dataset], kinds(), _known())]


def _seed_of(generator: Any) -> str:
    """Name a generator by its seed, or by what it made of it and goes on with for 600 draws."""
    kind = type(generator).__name__
    if isinstance(generator, torch.Generator):
        return f"{kind} {generator.initial_seed()}"
    if isinstance(generator, random.Random):
        return f"{kind} {zlib.crc32(repr(generator.getstate()[1][:-1]).encode())}"
    seeds = getattr(getattr(generator, "bit_generator", None), "seed_seq", None)
    if seeds is None:  # RandomState
        return f"{kind} {zlib.crc32(generator.get_state()[1].tobytes())}"
    return f"{kind} {seeds.entropy} {seeds.spawn_key or ''}".rstrip()
