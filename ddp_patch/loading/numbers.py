"""Numbers of loaders, by which ranks know them."""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import Any

from torch.utils.data import DataLoader

from .. import script_thread
from ..batch.world import World

_counts: dict[str, itertools.count[int]] = {}


class Numbers:
    """Gives the same number to the same loader on every rank."""

    def __init__(self, world: World) -> None:
        """Start with none."""
        self._world = world
        self._made: weakref.WeakKeyDictionary[DataLoader[Any], int] = weakref.WeakKeyDictionary()
        self._count = 0  # of those

    def made(self, loader: DataLoader[Any]) -> None:
        """Count a loader that was made, if all ranks make it."""
        world = self._world
        if script_thread.is_here() and not (world.reading.get() or world.fetching.get() or world.muted.get()):
            self._count += 1
            self._made[loader] = self._count

    def of(self, loader: DataLoader[Any]) -> str:
        """Number a loader that is iterated for the first time.

        Other threads than the script's may come to theirs in any order, and Python names threads by how many the
        process has started, which differs: rank 0 alone has those of tensorboard.
        """
        if script_thread.is_here():
            return str(next(_counts.setdefault("", itertools.count(1))))
        if loader in self._made:
            return f"{self._made[loader]} of a thread"
        where = f" of {threading.current_thread().name}"
        return f"{next(_counts.setdefault(where, itertools.count(1)))}{where}"
