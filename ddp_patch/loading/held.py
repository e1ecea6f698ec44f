"""What the dataset and the collate function of a loader hold, as far as Python can be looked through."""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Iterable
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
    found: list[Any] = []
    seen = {id(thing) for thing in known}

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


def shared_with_children(loader: Any) -> list[Any]:
    """Find locks, counters, queues, ... that tie the processes together that read a loader."""
    kinds = [getattr(sys.modules[module], name) for module, name in _SHARED if module in sys.modules]
    return held_by(loader, tuple(kinds)) if kinds else []
