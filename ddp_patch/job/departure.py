"""Ranks that fail together leave one after the other, rank 0 first: a launcher ends all when one has left.

Rank 0 may be writing yet, in a thread or in an exit function, what one process would have written to its end.
"""

from __future__ import annotations

import contextlib
import itertools
import threading

from .rank_status import RankStatus

_FAILS_WAIT = 1.0  # seconds, in which rank 0 comes to the error as well
_WORD_WAIT = 10.0  # seconds, in which rank 0 says again that it is there; else it is dead or stopped
_GONE = b"gone"


class Departure:
    """This rank's side of it."""

    def __init__(self, rank_status: RankStatus, rank: int) -> None:
        """Begin with nobody leaving.

        Args:
            rank_status: of this rank.
            rank: of this process.
        """
        self.is_leader = rank == 0
        self._rank_status = rank_status
        self._one = threading.Lock()
        self._numbers = itertools.count()  # of what is said; taken from two threads

    def goes_on(self) -> None:
        """Say that this rank failed and is not gone yet: called every second."""
        self._say(b"there")

    def wait_for_turn(self) -> None:
        """Stay until rank 0 is gone, where it fails as well."""
        if self.is_leader:
            return
        with contextlib.suppress(RuntimeError):  # the store went with rank 0
            answer = self._rank_status.wait("failure of rank 0", _FAILS_WAIT)
            while answer is not None and answer != _GONE:
                answer = self._rank_status.wait(f"leaving {next(self._numbers)}", _WORD_WAIT)

    def goes(self) -> None:
        """Say that this rank is gone, at its very end."""
        self._say(_GONE)

    def _say(self, word: bytes) -> None:
        if self.is_leader:
            # One word after the other: those that listen wait for each.
            with self._one, contextlib.suppress(RuntimeError):  # the store is gone, and with it those that would listen
                self._rank_status.put(f"leaving {next(self._numbers)}", word)
