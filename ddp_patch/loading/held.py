"""What the dataset and the collate function of a loader hold, as far as Python can be looked through."""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

_DEPTH = 4  # of objects in objects
_MOST = 64  # entries of a container that is looked into
_SHARED = (  # by the processes that a process starts
    ("multiprocessing.synchronize", "SemLock"),
    ("multiprocessing.synchronize", "Condition"),
    ("multiprocessing.synchronize", "Event"),
    ("multiprocessing.sharedctypes", "SynchronizedBase"),
    ("multiprocessing.queues", "Queue"),
    ("multiprocessing.queues", "SimpleQueue"),
    ("multiprocessing.managers", "BaseProxy"),
)


def held_by(loader: Any, kinds: tuple[type, ...], known: Iterable[Any] = ()) -> list[Any]:
    """Find objects of some kinds, in an order that is the same on every rank.

    Args:
        loader: whose dataset and collate function are looked through.
        kinds: classes.
        known: objects that are not meant.
    """
    return list(_within([loader.dataset, loader.collate_fn], kinds, known))


def _within(things: Iterable[Any], kinds: tuple[type, ...], known: Iterable[Any] = ()) -> Iterator[Any]:
    seen = {id(thing): thing for thing in known}  # which stay alive: their places in memory are not taken again

    def look(thing: Any, depth: int) -> Iterator[Any]:
        if id(thing) in seen or depth > _DEPTH or isinstance(thing, (str, bytes, int, float, torch.Tensor, type)):
            return
        seen[id(thing)] = thing
        if isinstance(thing, types.FunctionType) and (thing.__module__ or "").startswith("torch."):
            return
        if isinstance(thing, kinds):
            yield thing
        if isinstance(thing, (list, tuple)) and len(thing) <= _MOST:
            for item in thing:
                yield from look(item, depth + 1)
        elif isinstance(thing, dict) and len(thing) <= _MOST:
            for item in thing.values():
                yield from look(item, depth + 1)
        elif isinstance(thing, types.MethodType):
            yield from look(thing.__self__, depth + 1)
            yield from look(thing.__func__, depth + 1)
        elif isinstance(thing, functools.partial):
            yield from look([thing.func, *thing.args, *thing.keywords.values()], depth + 1)
        elif isinstance(thing, types.FunctionType):
            for cell in thing.__closure__ or ():
                with contextlib.suppress(ValueError):  # not bound yet
                    yield from look(cell.cell_contents, depth + 1)
            for name in thing.__code__.co_names:
                yield from look(thing.__globals__.get(name), depth + 1)
        elif hasattr(thing, "__dict__") and not isinstance(thing, (types.ModuleType, torch.nn.Module)):
            yield from look(vars(thing), depth)
            for kind in type(thing).__mro__:
                if not kind.__module__.startswith(("torch.", "builtins")):
                    for function in vars(kind).values():
                        if isinstance(function, types.FunctionType):
                            yield from look(function, depth + 1)

    for thing in things:
        yield from look(thing, 0)


def asks_for_its_worker(loader: Any) -> bool:
    """Tell whether what is loaded may depend on which worker of how many loads it."""
    begin = loader.worker_init_fn
    if isinstance(begin, types.MethodType) and begin.__self__ is loader.dataset:
        return True
    functions = _within([loader.dataset, loader.collate_fn, begin], (types.FunctionType,))
    return any("get_worker_info" in function.__code__.co_names for function in functions)


def shared_with_children(loader: Any) -> list[Any]:
    """Find locks, counters, queues, ... that tie the processes together that read a loader."""
    kinds = [getattr(sys.modules[module], name) for module, name in _SHARED if module in sys.modules]
    return held_by(loader, tuple(kinds)) if kinds else []
