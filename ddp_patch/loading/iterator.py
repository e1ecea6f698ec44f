"""What a script iterates: a loader's iterator, whose batches are global."""

from __future__ import annotations

from typing import Any

from .. import script_thread
from ..batch.world import World
from ..replica.replicas import Replicas


class Batches:
    """A loader's iterator: what it yields is the global batch."""

    def __init__(
        self, source: Any, replicas: Replicas, world: World, what: str, epoch: int, length: int | None, name: str = ""
    ) -> None:
        """Wrap what fetches the batches.

        Args:
            source: gives each batch with its number of rows.
            replicas: learns the size of the batch the script is working on.
            world: the ranks.
            what: names a batch in messages, alike on every rank.
            epoch: of the loader, from 0.
            length: how many batches it has; None if that is not known.
            name: of the loader.
        """
        self._source = source
        self._replicas = replicas
        self._world = world
        self._what = what
        self._epoch, self._length, self._count = epoch, length, 0
        self._name = name

    def __iter__(self) -> Batches:
        """An iterator is its own iterator."""
        return self

    def __len__(self) -> int:
        """Count the batches."""
        return len(self._source.iterator)

    def __next__(self) -> Any:
        """Fetch the next batch."""
        self._world.check()
        counts = self._world.reaches_point(self._what)
        began = self._world.ledger.pace.begin()
        try:
            data, rows = self._source.next()
        finally:
            self._world.ledger.pace.end("loading", began)
            if counts:
                self._world.trail.leave()
        self._count += 1
        self._world.ledger.epochs = None if self._length is None else self._epoch + self._count / self._length
        self._world.ledger.loader = self._name
        self._world.ledger.batches += 1
        self._world.ledger.small_batches += rows is not None and rows < self._world.size
        if script_thread.is_here():  # a thread that reads ahead is not at the batch the script works on
            self._replicas.rows = rows
        return data

    def __getattr__(self, name: str) -> Any:
        """Pass everything else on to torch's iterator."""
        return getattr(self._source.iterator, name)
