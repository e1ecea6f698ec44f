"""Where this rank is among the calls of modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..batch.world import World

CallPosition = tuple[int, int, bool, bool]
ON_WHOLE: CallPosition = (1, 0, False, False)  # inside a module that computes the whole batch


class CallStack:
    """Knows which modules run, and whether the calls inside them are intercepted."""

    def __init__(self, world: World) -> None:
        """Start outside of any call.

        Args:
            world: the ranks.
        """
        self.computes_rows = False  # a module is computing this rank's rows
        self.intercept_depth = 0  # > 0 while a forward runs on batches, and calls of its submodules are intercepted
        self.items: int | None = None  # how many entries its lists have, if it is given some with one for each row
        self._bypass_depth = 0  # > 0 while submodules run as written: the module around them computes rows, say
        self._world = world

    @property
    def is_bypassed(self) -> bool:
        """Whether modules run as written, since one around them was decided on."""
        return self._bypass_depth > 0

    @property
    def is_in_call(self) -> bool:
        """Whether a module is running, decided on or with its submodules intercepted."""
        return self._bypass_depth > 0 or self.intercept_depth > 0

    @contextmanager
    def intercepting_submodules(self, items: int | None = None) -> Iterator[None]:
        """Intercept the submodules called inside, where lists may have ``items`` entries, one for each row."""
        self.intercept_depth += 1
        before, self.items = self.items, items or self.items
        try:
            yield
        finally:
            self.intercept_depth -= 1
            self.items = before

    @contextmanager
    def without_interception(self) -> Iterator[None]:
        """Let submodules that are called inside run as written."""
        self._bypass_depth += 1
        try:
            yield
        finally:
            self._bypass_depth -= 1

    @property
    def position(self) -> CallPosition:
        """Where this rank is among the calls of modules."""
        return self._bypass_depth, self.intercept_depth, self.computes_rows, self._world.tells_batch_sizes

    @contextmanager
    def at_position(self, position: CallPosition) -> Iterator[None]:
        """Stand where a forward stood among the calls, while backward recomputes a part of it."""
        before = self.position
        self._stand_at(position)
        try:
            yield
        finally:
            self._stand_at(before)

    def _stand_at(self, position: CallPosition) -> None:
        self._bypass_depth, self.intercept_depth, self.computes_rows, self._world.tells_batch_sizes = position
