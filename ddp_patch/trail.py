"""The points of the script at which ranks wait for each other, in the order in which this rank comes to them.

A program that is the same on every rank comes to the same points in the same order. Ranks of one host write theirs to
memory that the others read, so that whoever comes to another point than the rest learns it before it waits there. It
costs no message: a point is two hundred nanoseconds.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
import zlib
from collections.abc import Callable, Sequence
from typing import Any

SLOTS = 64  # points that are remembered; a power of two
_SIZE = (SLOTS + 1) * 8  # bytes; the last word is 1 + the count at which the program ended
_WORDS = 1 << 32
_KINDS = 4096  # names of points whose checksums are kept


class Trail:
    """Where this rank is among the points at which ranks meet. Only what the script's main thread does is in order."""

    def __init__(self) -> None:
        """Begin before the first point, in memory of this process."""
        self.count = 0  # points that this rank has come to
        self.depth = 0  # > 0 while it is at one, and may be waiting
        self.what = "the start"
        self.detail: Sequence[Any] = ()
        self.words: Any = memoryview(bytearray(_SIZE)).cast("Q")
        self.others: dict[int, Any] = {}  # rank of this host -> its words
        self.parted: Callable[[int], Exception] = _unexplained
        self._sums: dict[str, int] = {}
        self._main = threading.main_thread().ident
        _living.add(self)

    def enter(self, what: str, size: int = 0, detail: Sequence[Any] = ()) -> bool:
        """Come to a point, in a pair with ``leave``.

        Args:
            what: names the kind of point, alike on every rank.
            size: further tells it apart, alike on every rank.
            detail: for messages.

        Returns:
            whether it counts, and is to be left.

        Raises:
            LockstepError: if another rank of this host has come to something else as its point of this number.
        """
        if threading.get_ident() != self._main:
            return False
        count = self.count = self.count + 1
        self.depth += 1
        self.what, self.detail = what, detail
        kind = self._sums.get(what)
        if kind is None:
            kind = self._sum(what)
        at = count % SLOTS
        sign = self.words[at] = count * _WORDS + (kind + size) % _WORDS
        for rank, words in self.others.items():
            other = words[at]
            if other != sign and other // _WORDS == count:
                error = self.parted(rank)
                self.depth -= 1
                raise error
        return True

    def leave(self) -> None:
        """Go on from a point."""
        self.depth -= 1

    def end(self) -> None:
        """Note that this rank comes to no further point."""
        self.words[SLOTS] = self.count + 1

    def go_private(self) -> None:
        """From now on, write to nobody's memory and look at nobody's."""
        self.words = memoryview(bytearray(_SIZE)).cast("Q")
        self.others = {}

    def _sum(self, what: str) -> int:
        if len(self._sums) > _KINDS:
            self._sums.clear()
        kind = self._sums[what] = zlib.crc32(what.encode())
        return kind


def own_words(descriptor: int) -> Any:
    """Make the memory behind a file the words of this rank."""
    os.ftruncate(descriptor, _SIZE)
    return memoryview(mmap.mmap(descriptor, _SIZE)).cast("Q")


def others_words(descriptor: int) -> Any:
    """See the words of another rank."""
    return memoryview(mmap.mmap(descriptor, _SIZE, access=mmap.ACCESS_READ)).cast("Q")


def _unexplained(rank: int) -> Exception:
    return RuntimeError(f"rank {rank} came to another point")


def _leave_to_the_parent() -> None:
    for trail in list(_living):
        trail.go_private()


_living: weakref.WeakSet[Trail] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):  # a child is no rank, and must not write where its parent does
    os.register_at_fork(after_in_child=_leave_to_the_parent)
