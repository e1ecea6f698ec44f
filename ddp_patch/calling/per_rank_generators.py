"""Random numbers for rows come from generators of this rank's own, so that the global ones stay alike on all ranks.

Dropout and augmentation draw as many numbers as a rank has rows. Drawn from the generators that the script seeds,
they would leave the ranks with different shuffles; drawn from equal seeds, with the same masks.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

_MASK = (1 << 64) - 1


class PerRankGenerators:
    """This rank's torch (CPU and accelerator), numpy and random generators, swapped in where rows are worked on.

    Seeded from the script's torch seed and the rank: reproducible, and independent of what other ranks draw.
    """

    def __init__(self, rank: int, device: torch.device) -> None:
        """Seed lazily, so that a ``torch.manual_seed`` of the script counts."""
        self._rank = rank
        self._device = torch.get_device_module(device.type) if device.type != "cpu" else None
        self._seeded_from: int | None = None
        self._torch = self._python = self._numpy = self._accelerator = None  # type: Any
        self._marks: Any = WeakTensorKeyDictionary()  # states that the script keeps -> where the rank's stood then
        self._script: list[Any] | None = None  # the script's generators while the rank's are in place

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Draw from them inside; reentrant."""
        outermost = self.enter()
        try:
            yield
        finally:
            if outermost:
                self.leave()

    def enter(self) -> bool:
        """Put the rank's generators in place; False if they already are."""
        if self._script is not None:
            return False
        self._swap_in(beside_torch=True)
        return True

    def enter_torch(self) -> bool:
        """Put those of torch in place; False if the rank's generators already are.

        For a forward on rows: one that draws from Python's or NumPy's runs on batches, so what it may draw after all is
        what one process would draw.
        """
        if self._script is not None:
            return False
        self._swap_in(beside_torch=False)
        return True

    def leave(self) -> None:
        """Put the script's generators back, if the rank's are in place."""
        if self._script is not None:
            self._swap_out()

    def reseeded(self) -> None:
        """The script seeded torch's generator: the rank's begins anew too, whether or not the seed is another one."""
        if self._script is None:
            self._seeded_from = None

    def marked(self, state: Any) -> None:
        """The script keeps torch's state, to come back to what it draws now."""
        if self._script is None:
            self._marks[state] = self.torch_states()

    def returned(self, state: Any) -> None:
        """The script came back to a state that it kept."""
        if self._script is None and state in self._marks:
            self._torch, self._accelerator = self._marks[state]
            self._seeded_from = torch.initial_seed()

    def torch_states(self) -> tuple[Any, Any]:
        """Give the states of the rank's torch generators, to draw the same again later."""
        self._keep_seed()
        return self._torch, self._accelerator

    @contextmanager
    def replayed(self, earlier: tuple[Any, Any] | None) -> Iterator[None]:
        """Draw inside from what ``torch_states`` gave earlier, and afterwards as if nothing had been drawn."""
        now = self.torch_states()
        if earlier is not None:
            self._torch, self._accelerator = earlier
        try:
            yield
        finally:
            if earlier is not None:
                self._torch, self._accelerator = now

    def _keep_seed(self) -> None:
        seed = torch.default_generator.initial_seed()
        if seed != self._seeded_from:  # the script seeded anew
            self._seed(seed)

    def _swap_in(self, beside_torch: bool) -> None:
        self._keep_seed()
        numpy = _numpy() if beside_torch else None
        self._script = [
            torch.default_generator.get_state(),
            random.getstate() if beside_torch else None,
            numpy and (numpy.random.get_bit_generator(), _kept_number(numpy.random)),
            self._device and self._device.get_rng_state(),
        ]
        torch.default_generator.set_state(self._torch)
        if beside_torch:
            random.setstate(self._python)
        if numpy:
            numpy.random.set_bit_generator(self._numpy)
        if self._device:
            self._device.set_rng_state(self._accelerator)

    def _swap_out(self) -> None:
        script, self._script = self._script, None
        assert script is not None
        self._torch = torch.default_generator.get_state()
        torch.default_generator.set_state(script[0])
        if script[1] is not None:
            self._python = random.getstate()
            random.setstate(script[1])
        if script[2] is not None:
            numpys, (bits, state) = sys.modules["numpy"].random, script[2]
            numpys.set_bit_generator(bits)  # 0.2 µs, a copy of the state takes 35
            if state is not None:
                numpys.set_state(state)
        if self._device:
            self._accelerator = self._device.get_rng_state()
            self._device.set_rng_state(script[3])

    def _seed(self, seed: int) -> None:
        mixed = rank_seed(seed, self._rank)
        self._seeded_from = seed
        self._torch = torch.Generator("cpu").manual_seed(mixed).get_state()
        self._python = random.Random(mixed).getstate()
        numpy = _numpy()
        self._numpy = numpy and numpy.random.MT19937(mixed)
        if self._device:
            self._accelerator = torch.Generator(device=torch.accelerator.current_accelerator()).manual_seed(mixed)
            self._accelerator = self._accelerator.get_state()


def _kept_number(numpys: Any) -> Any:
    """Give the state of NumPy's generator if it holds the second of two normal numbers, which a swap would lose."""
    state = numpys.get_state(legacy=False)
    return state if state["has_gauss"] else None


def _numpy() -> Any:
    """numpy, if this program uses it at all (torch runs without)."""
    return sys.modules.get("numpy")


def rank_seed(seed: int, rank: int) -> int:
    """Mix a seed and a rank (splitmix64's finalizer), so that neighbouring seeds of neighbouring ranks never meet."""
    mixed = (seed + (rank + 1) * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return (mixed ^ (mixed >> 31)) >> 1
