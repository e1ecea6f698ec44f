"""Whether what happens now happens on all ranks alike, on some of them, or in a trial of a model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .. import script_thread
from ..batch.world import World
from .collector import Collector


class Lockstep:
    """Tells which ranks come to what happens now."""

    def __init__(self, world: World) -> None:
        """Begin with all of them.

        Args:
            world: the ranks.
        """
        self.is_leader = world.rank == 0
        self._world = world
        self._process = os.getpid()
        self._running = True
        self._collector = Collector()
        self._acting: ContextVar[bool] = ContextVar("acting", default=False)

    def in_lockstep(self) -> bool:
        """Tell whether what happens now is done by all ranks alike, and so once."""
        return self._is_shared() and self._is_in_step() and not self._world.muted.get()

    def is_silent(self) -> bool:
        """Tell whether this rank leaves to rank 0 what happens now: threads are not in step, but one of each acts.

        Nor are finalizers that the garbage collector runs.
        """
        if self._world.muted.get():
            return self._is_shared()
        in_step = self._is_in_step() or script_thread.is_launchers()
        return not self.is_leader and self._is_shared() and not in_step

    def _is_in_step(self) -> bool:
        return script_thread.is_here() and not self._collector.is_at_work()

    def _is_shared(self) -> bool:
        # Children, and a dataset that loads the rows of one rank, do what is theirs alone.
        return (
            self._running
            and not self._acting.get()
            and not self._world.fetching.get()
            and not self._world.reading.get()
            and os.getpid() == self._process
        )

    def mutes(self, said: Any) -> bool:
        """Tell whether a trial is running, which writes nothing, and keep what it would have written."""
        is_muted = self._world.muted.get()
        if is_muted:
            self._world.muted_effects.append(str(said))
        return is_muted

    def is_acting(self) -> bool:
        """Tell whether this is part of an effect that happens on this rank as it is."""
        return self._acting.get()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let effects inside happen on this rank as they are."""
        token = self._acting.set(True)
        try:
            yield
        finally:
            self._acting.reset(token)

    def stop(self) -> None:
        """From now on, everything is done as it comes."""
        self._running = False
        self._collector.stop()
