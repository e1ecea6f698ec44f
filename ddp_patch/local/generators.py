"""Who draws which random numbers in the local view: all alike until they train, then each rank its own.

From the first epoch of a loader after an optimizer was made, a rank draws from its own random state, as after
``torch.manual_seed(seed + rank)``: dropout, augmentation, noise. What has to agree is drawn from the state that all
ranks share, before and afterwards: weights (``torch.nn.init``), ``random_split``, samplers.
"""

from __future__ import annotations

import contextlib
import random
import sys
import zlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from ..effects.system_random import SystemRandom
from ..generators import set_states, states

_GENERATORS = ("torch.manual_seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all", "random.seed")
_OF_NUMPY = "numpy.random.seed"


class LocalGenerators:
    """The generators that scripts draw from: torch's, random's and numpy's."""

    def __init__(self, rank: int, device: torch.device) -> None:
        """Begin with one random state for all ranks."""
        self.are_per_rank = False
        self._rank = rank
        self._device = torch.get_device_module(device.type) if device.type != "cpu" else None
        self._shared_states: list[Any] = []  # that all ranks have, while each draws from its own
        self._is_shared = False  # those states are in place
        self._is_seeding = False  # torch.manual_seed, which seeds accelerators with the seed that it was given
        self._taken: Any = WeakTensorKeyDictionary()  # states that this rank has taken
        self._came_back_to: int | None = None  # a state out of a checkpoint, which was rank 0's

    def make_per_rank(self) -> None:
        """Draw from this rank's own random state from now on."""
        if self.are_per_rank:
            return
        self.are_per_rank = True
        self._shared_states = states()
        if self._came_back_to is not None and self._rank == 0:
            return  # to a state that was its own
        seed = (torch.initial_seed() if self._came_back_to is None else self._came_back_to) + self._rank
        torch.default_generator.manual_seed(seed)
        if self._device is not None:
            self._device.manual_seed_all(seed)
        # Through instances that nothing of ours stands before.
        random.setstate(random.Random(seed).getstate())
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.set_state(numpy.random.RandomState(seed % (1 << 32)).get_state())

    def restore_shared(self) -> None:
        """Draw alike again: the view ends."""
        if self.are_per_rank:
            self.are_per_rank = False
            set_states(self._shared_states)

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Draw inside what every rank draws. Every rank comes here alike; reentrant."""
        if not self.are_per_rank or self._is_shared:
            yield
            return
        local_states, self._is_shared = states(), True
        set_states(self._shared_states)
        try:
            yield
        finally:
            self._shared_states, self._is_shared = states(), False
            set_states(local_states)

    def seed(self, what: str, seed: Any) -> Any:
        """Give what a generator is seeded with where the script says a seed."""
        if not self.are_per_rank or self._is_shared or isinstance(seed, bool) or not isinstance(seed, int):
            return seed
        if what != _OF_NUMPY and (what not in _GENERATORS or self._is_seeding):
            return seed
        self._is_seeding = what == "torch.manual_seed"
        with self.shared():  # weights of a model that is made next are those of this seed
            self._seed_here(what, seed)
        return (seed + self._rank) % (1 << 32) if what == _OF_NUMPY else seed + self._rank

    def _seed_here(self, what: str, seed: int) -> None:
        # Through instances that nothing of ours stands before.
        if what == _OF_NUMPY:
            numpy = sys.modules["numpy"]
            numpy.random.set_state(numpy.random.RandomState(seed).get_state())
        elif what == "random.seed":
            random.setstate(random.Random(seed).getstate())
        else:
            if what == "torch.manual_seed":
                torch.default_generator.manual_seed(seed)
            if self._device is not None:
                self._device.manual_seed_all(seed)

    def reseeded(self) -> None:
        """The script has seeded torch's generator."""
        self._is_seeding = False

    def marked(self, state: torch.Tensor) -> None:
        """The script keeps torch's state, which is this rank's."""
        self._taken[state] = True

    def returned(self, state: torch.Tensor) -> None:
        """The script came back to a state; one out of a checkpoint is rank 0's."""
        if state in self._taken:
            return
        self._came_back_to = zlib.crc32(state.numpy().tobytes())
        if self.are_per_rank and self._rank:
            torch.default_generator.manual_seed(self._came_back_to + self._rank)


class OwnSeeds(SystemRandom):
    """Seeds that a script says are a rank's own once the generators are; those of the system as ever."""

    def __init__(self, generators: LocalGenerators, *args: Any) -> None:
        """Draw nothing yet."""
        super().__init__(*args)
        self._generators = generators

    # Who asks is found out by frames, among which none of this file may be.

    def _scripts(self, what: str, seed: Any) -> Any:
        return self._generators.seed(what, seed)

    def _are_alike(self) -> bool:
        return not self._generators.are_per_rank
