"""Which epoch of a loader begins: its order depends on it, as after ``set_epoch``.

A script may make its loader anew for each epoch. On one process each gets another order; counted from 0, all would
have the same one. So a loader goes on counting where one like it ended that is gone by now, in the same line of one
training.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch.utils.data import DataLoader

from ..batch.world import World
from ..ledger import script_line
from .models import LocalModels


class Epochs:
    """Counts the epochs of each loader."""

    def __init__(self, world: World, models: LocalModels) -> None:
        """Start without any loader.

        Args:
            world: the ranks.
            models: whose optimizers tell one training from the next.
        """
        self._world = world
        self._models = models
        self._counts: weakref.WeakKeyDictionary[DataLoader[Any], int] = weakref.WeakKeyDictionary()
        self._last: dict[tuple[str, str, int], tuple[weakref.ref[DataLoader[Any]], int]] = {}

    def begin(self, loader: DataLoader[Any], described: str) -> int:
        """Give the number of the epoch that begins, from 0. Every rank comes here together.

        Args:
            loader: of the script.
            described: what it is like, in words.
        """
        key = script_line(), described, self._models.optimizers
        before = self._counts.get(loader)
        if before is None:
            before = self._of_one_that_is_gone(key)
        epoch = self._counts[loader] = before + 1
        self._last[key] = weakref.ref(loader), epoch
        return epoch

    def _of_one_that_is_gone(self, key: tuple[str, str, int]) -> int:
        if key not in self._last:
            return -1
        other, epoch = self._last[key]
        # What is in cycles goes when the garbage collector of a rank comes by.
        is_gone = all(values[0] for values in self._world.share([other() is None]))
        return epoch if is_gone else -1
