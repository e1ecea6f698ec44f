"""Generators that a loader's dataset or collate function holds, which a reader carries over to other ranks."""

from __future__ import annotations

import contextlib
import functools
import random
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import torch

from ..generators import set_states, states


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


def in_main_thread() -> bool:
    """Tell whether the script's main thread is running, whose draws are in order."""
    return threading.current_thread() is threading.main_thread()


_KINDS = (torch.Generator, random.Random)
_DEPTH = 4  # of objects in objects
_MOST = 64  # entries of a container that is looked into


def own_generators(loader: Any) -> list[Any]:
    """Find generators that a dataset or a collate function holds: both may share them with the script.

    In an order that is the same on every rank.
    """
    numpy = sys.modules.get("numpy")
    kinds = (*_KINDS, numpy.random.Generator, numpy.random.RandomState) if numpy else _KINDS
    found: list[Any] = []
    # Those behind the functions of torch and random are carried over anyway.
    seen = {id(torch.default_generator), id(random.seed.__self__)}  # type: ignore[attr-defined]

    def look(thing: Any, depth: int) -> None:
        if id(thing) in seen or depth > _DEPTH or isinstance(thing, (str, bytes, int, float, torch.Tensor, type)):
            return
        seen.add(id(thing))
        if isinstance(thing, kinds):
            found.append(thing)
        elif isinstance(thing, (list, tuple)) and len(thing) <= _MOST:
            for item in thing:
                look(item, depth + 1)
        elif isinstance(thing, dict) and len(thing) <= _MOST:
            for item in thing.values():
                look(item, depth + 1)
        elif isinstance(thing, types.MethodType):
            look(thing.__self__, depth + 1)
            look(thing.__func__, depth + 1)
        elif isinstance(thing, functools.partial):
            look([thing.func, *thing.args, *thing.keywords.values()], depth + 1)
        elif isinstance(thing, types.FunctionType):
            for cell in thing.__closure__ or ():
                with contextlib.suppress(ValueError):  # not bound yet
                    look(cell.cell_contents, depth + 1)
            for name in thing.__code__.co_names:
                look(thing.__globals__.get(name), depth + 1)
        elif hasattr(thing, "__dict__") and not isinstance(thing, (types.ModuleType, torch.nn.Module)):
            look(vars(thing), depth)
            for kind in type(thing).__mro__:
                if not kind.__module__.startswith(("torch.", "builtins")):
                    for function in vars(kind).values():
                        if isinstance(function, types.FunctionType):
                            look(function, depth + 1)

    look(loader.dataset, 0)
    look(loader.collate_fn, 0)
    return found


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
