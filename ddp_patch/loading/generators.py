"""Generators that a loader's dataset or collate function holds.

A reader carries them over to other ranks; where each rank loads its own rows, each draws from its own random state.
"""

from __future__ import annotations

import contextlib
import random
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .. import script_thread
from ..calling.per_rank_generators import PerRankGenerators, rank_seed
from ..generators import kinds, same_states, set_state_of, set_states, state_of, states
from .reachable import find_in_loader, find_within


@contextlib.contextmanager
def preserving_rng_state(generator: torch.Generator | None) -> Iterator[None]:
    """Leave all generators as they were, whatever is drawn inside."""
    before, state = states(), generator.get_state() if generator is not None else None
    try:
        yield
    finally:
        set_states(before)
        if generator is not None and state is not None:
            generator.set_state(state)


def generators_of(loader: Any) -> list[Any]:
    """Find generators that a dataset or a collate function holds: both may share them with the script.

    In an order that is the same on every rank.
    """
    return find_in_loader(loader, kinds(), _default_generators())


def reseed_for_rank(generator: Any, rank: int) -> None:
    """Seed a generator that stands alike on every rank anew, for this rank alone."""
    _reseed(generator, rank_seed(_draw_seed(generator), rank))


def _draw_seed(generator: Any) -> int:
    if isinstance(generator, torch.Generator):
        return int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))
    if isinstance(generator, random.Random):
        return generator.getrandbits(63)
    if getattr(generator, "bit_generator", None) is not None:
        return int(generator.integers(2**63 - 1))
    return int(generator.randint(2**31 - 1))


def _reseed(generator: Any, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, random.Random):
        generator.seed(seed)
    elif (bits := getattr(generator, "bit_generator", None)) is not None:
        bits.state = type(bits)(seed).state
    else:
        generator.seed(seed % 2**32)


class FetchingGenerators:
    """What this rank draws from while it fetches rows of an epoch in this process.

    torch's, random's and numpy's generators, and the dataset's own. These are drawn from once, alike on every rank, so
    that what the script seeds counts, and another epoch has other numbers.
    """

    def __init__(self, per_rank: PerRankGenerators, held: Sequence[Any], rank: int) -> None:
        """Nothing is drawn yet.

        Args:
            per_rank: for the generators behind functions.
            held: by the dataset, where the script has said that its rows are dealt all the same.
            rank: of this process.
        """
        self._per_rank = per_rank
        self._held = list(held)
        self._rank = rank
        self._rank_states: list[Any] | None = None  # of those held, as this rank left them
        self._script_states: list[Any] | None = None  # while the rank's are in place

    def enter(self) -> None:
        """Put them in place. Generators belong to the process: other threads would draw for the script."""
        if not script_thread.is_here():
            return
        self._per_rank.enter()
        if not self._held or self._script_states is not None:
            return
        seeds = [_draw_seed(each) for each in self._held] if self._rank_states is None else []
        self._script_states = [state_of(each) for each in self._held]
        for each, seed in zip(self._held, seeds, strict=False):
            _reseed(each, rank_seed(seed, self._rank))
        if self._rank_states is not None:
            _set_states(self._held, self._rank_states)

    def leave(self) -> None:
        """Put the script's back."""
        if not script_thread.is_here():
            return
        self._per_rank.leave()
        if self._script_states is not None:
            self._rank_states = [state_of(each) for each in self._held]
            _set_states(self._held, self._script_states)
            self._script_states = None


def _set_states(generators: Sequence[Any], saved: Sequence[Any]) -> None:
    for generator, state in zip(generators, saved, strict=True):
        set_state_of(generator, state)


def generators_in(dataset: Any) -> list[Any]:
    """Find generators that a dataset holds."""
    return list(find_within([dataset], kinds(), _default_generators()))


def _default_generators() -> tuple[Any, Any]:
    """Those behind the functions of torch and random, which are carried over anyway."""
    return torch.default_generator, random.getrandbits.__self__  # type: ignore[attr-defined]


def match_to_readers(generators: Sequence[Any], reader_states: Sequence[Any]) -> list[Any]:
    """Give this rank's generators for those that the reader holds, and None for each that only reading has made.

    Args:
        generators: of this rank.
        reader_states: where the reader's stood as the epoch began.
    """
    if len(generators) == len(reader_states):
        return list(generators)
    left, found = [(each, state_of(each)) for each in generators], []
    for state in reader_states:
        twin = next((each for each, its in left if type(its) is type(state) and same_states([its], [state])), None)
        left = [(each, its) for each, its in left if each is not twin]
        found.append(twin)
    return found


def seeds_in(dataset: Any) -> list[str]:
    """Tell the seeds of the generators that a dataset holds."""
    return [_seed_of(each) for each in generators_in(dataset)]


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
