"""Where the generators that scripts draw from stand: torch's, random's and numpy's, and their own."""

from __future__ import annotations

import contextlib
import functools
import pickle
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch


def states() -> list[Any]:
    """Where they stand: torch's, random's, numpy's and the present accelerator's, or None where that is not in use."""
    numpy, device = sys.modules.get("numpy"), _accelerator()
    in_use = device is not None and device.is_initialized()  # else nothing was drawn, and to ask would take memory
    on_host = [torch.default_generator.get_state(), random.getstate(), numpy and numpy.random.get_state()]
    return [*on_host, device.get_rng_state() if in_use else None]


@functools.cache
def _accelerator() -> Any:
    device = torch.accelerator.current_accelerator(check_available=True)
    module = None if device is None else torch.get_device_module(device)
    return module if hasattr(module, "is_initialized") else None


def same(left: list[Any], right: list[Any]) -> bool:
    """Tell whether nothing was drawn between two states."""
    left_torchs, right_torchs = [[state[0], *filter(torch.is_tensor, state[3:])] for state in (left, right)]
    alike = len(left_torchs) == len(right_torchs) and all(map(torch.equal, left_torchs, right_torchs))
    return alike and same_beside_torch(left, right)


def same_beside_torch(left: list[Any], right: list[Any]) -> bool:
    """Tell whether nothing was drawn from Python's and NumPy's generator."""
    return bool(left[1] == right[1]) and same_numbers(left[2], right[2])


def same_numbers(left: Any, right: Any) -> bool:
    """Tell whether nothing was drawn from NumPy's generator between two states of it."""
    if left is None or right is None:
        return left is right
    return left[2:] == right[2:] and bool((left[1] == right[1]).all())


def set_states(saved: list[Any]) -> None:
    """Go on from there."""
    torch.default_generator.set_state(saved[0])
    random.setstate(saved[1])
    if saved[2] is not None:
        sys.modules["numpy"].random.set_state(saved[2])
    if saved[3] is not None and _accelerator() is not None:
        _accelerator().set_rng_state(saved[3])


@contextlib.contextmanager
def same_draws(generators: Sequence[Any] = ()) -> Iterator[Callable[[], None]]:
    """Give a function that sets the generators back to where they are now.

    Args:
        generators: of the script's own, which are set back as well.
    """
    saved, its = states(), [(generator, state_of(generator)) for generator in generators]

    def draw_again() -> None:
        set_states(saved)
        for generator, state in its:
            set_state_of(generator, state)

    yield draw_again


def same_states(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Tell whether nothing was drawn from generators of the script's own between two states of theirs."""
    return all(map(_same_state, left, right))


def _same_state(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):  # whose pickle tells where it is in memory
        return torch.equal(left, right)
    return pickle.dumps(left) == pickle.dumps(right)


def kinds() -> tuple[type, ...]:
    """Classes of the generators that a script may make for itself."""
    numpy = sys.modules.get("numpy")
    classes = (torch.Generator, random.Random)
    return (*classes, numpy.random.Generator, numpy.random.RandomState) if numpy else classes


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
