"""A collective, and what surrounds it."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from ..errors import LockstepError
from .in_datasets import computes as computes_in_dataset
from .in_datasets import computes_in_turn

if TYPE_CHECKING:
    from .world import World


class Meeting:
    """Surrounds a collective; no generator, since there are several in each step."""

    __slots__ = ("_began", "_computes", "_counts", "_size", "_what", "_world")

    def __init__(self, world: World, what: str, size: int, computes: bool) -> None:
        """Name it; see ``World.collective``."""
        self._world = world
        self._what = what
        self._size = size
        self._computes = computes
        self._counts = False
        self._began: float | None = None

    def __enter__(self) -> None:
        """Begin, unless this rank or this thread is out of step."""
        world = self._world
        world.check()
        if world.fetching.get():
            raise computes_in_dataset(read_by_one=False)
        if world.trail.in_turn:
            raise computes_in_turn()
        world.one_thread.begins()
        if world.observation is not None:
            world.observation.note_whole_batch_use()
        self._counts = world.trail.enter(self._what, self._size)
        if not self._computes:
            self._began = world.ledger.pace.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End, and explain what failed."""
        try:
            if isinstance(error, RuntimeError) and not isinstance(error, LockstepError):  # of a collective inside
                why = self._world.explain(error)
                if why is not None and why is not error:
                    raise why from error
        finally:
            if self._began is not None:
                self._world.ledger.pace.end("waiting", self._began)
            if self._counts:
                self._world.trail.leave()
