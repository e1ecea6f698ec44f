"""What the script, or a debugger in it, asks its user: rank 0 asks, and every rank gets the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from .. import script_thread
from ..batch.world import World
from .rank_zero import RankZero

Alone = Callable[[], AbstractContextManager[None]]


class Prompts:
    """Asks for all ranks, and waits as long as a person takes."""

    def __init__(self, rank_zero: RankZero, world: World, alone: Alone) -> None:
        """Ask nothing yet.

        Args:
            rank_zero: who acts for all ranks.
            world: the ranks.
            alone: surrounds what rank 0 asks: Ctrl-C is meant for the question, and what it raises all ranks get.
        """
        self._alone = alone
        self._rank_zero = rank_zero
        self._world = world
        self._for_all = False  # the main thread waits for a thread that asks

    def ask(self, what: str, real: Callable[[], Any], *, may_be_awaited: bool = False, nothing: Any = "") -> Any:
        """Ask the user.

        Args:
            what: names the question, alike on every rank.
            real: asks, on rank 0.
            may_be_awaited: a debugger may ask so in a thread that it waits for.
            nothing: what a thread of another rank gets.

        Raises:
            BaseException: on every rank, what rank 0 gets: EOFError, KeyboardInterrupt.
        """
        in_thread = not script_thread.is_here()
        if self._rank_zero.in_lockstep() or (may_be_awaited and in_thread and self._for_all):
            return self._rank_zero.barrier_call(what, lambda: self._asked(real), is_patient=True)
        if self._rank_zero.is_silent():
            return nothing  # of a thread, that must not wait for ever
        return real()

    @contextmanager
    def for_all(self) -> Iterator[None]:
        """Surround what the ranks do alike, and in which a thread asks."""
        before, self._for_all = self._for_all, self._rank_zero.in_lockstep()
        try:
            yield
        finally:
            self._for_all = before

    def _asked(self, real: Callable[[], Any]) -> Any:
        self._world.is_prompting = True
        try:
            with self._alone():
                return real()
        finally:
            self._world.is_prompting = False
