"""The points of the script at which ranks wait for each other, in the order in which this rank comes to them.

A program that is the same on every rank comes to the same points in the same order. Ranks of one host write theirs to
memory that the others read, so that whoever comes to another point than the rest learns it before it waits there. It
costs no message: a point is two hundred nanoseconds.
"""

from __future__ import annotations

import mmap
import os
import weakref
import zlib
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

from .script_thread import Script

SLOTS = 64  # points that are remembered; a power of two
SAID = SLOTS + 1  # of the word that is 1 once this rank has said why the job ends; before it, 1 + the count at its end
_BYTES = (SLOTS + 2) * 8
_HALF = 32  # bits of a word that are the count; 16 of the others tell the kind of point, 16 what was sent
_LOW = (1 << 16) - 1
NOWHERE = 1 << 62  # a point that no rank comes to


class _Kinds(dict[str, int]):
    """The bits of each kind of point."""

    def __missing__(self, what: str) -> int:
        if len(self) > _LOW:  # loaders and epochs have names of their own
            self.clear()
        bits = self[what] = (zlib.crc32(what.encode()) & _LOW) << 16
        return bits

    def named(self, bits: int) -> str:
        return next((what for what, its in self.items() if its == bits), "the start")


class Trail:
    """Where this rank is among the points at which ranks meet. Only what the script's thread does is in order."""

    def __init__(self) -> None:
        """Begin before the first point, in memory of this process."""
        self.count = 0  # points that this rank has come to
        self.depth = 0  # > 0 while it is at one, and may be waiting
        self.in_turn = False  # it is at an effect, which one rank has for all
        self.recorder: Any = None  # gets every point as well
        self.hold_at = NOWHERE  # from this point on, ``on_hold`` is called
        self.on_hold: Callable[[int], None] = _go_on
        self.detail: Sequence[Any] = ()  # of the present one, for messages
        self.words: Any = memoryview(bytearray(_BYTES)).cast("Q")
        self.others: dict[int, Any] = {}  # rank of this host -> its words
        self.parted: Callable[[int], Exception] = _unexplained
        self._seen: tuple[Any, ...] = ()  # the others' words
        self._kinds = _Kinds()
        _living.add(self)

    def see(self, others: dict[int, Any]) -> None:
        """Compare this trail with others from now on.

        Args:
            others: ranks of this host, and their words.
        """
        self.others, self._seen = others, tuple(others.values())

    def enter(self, what: str, size: int = 0) -> bool:
        """Come to a point, in a pair with ``leave``. Called several times in a training step.

        Args:
            what: names the kind of point, alike on every rank.
            size: of what is sent, alike on every rank, where that is known.

        Returns:
            whether it counts, and is to be left.

        Raises:
            LockstepError: if another rank of this host has come to something else as its point of this number.
        """
        if get_ident() != Script.ident:
            return False
        count = self.count = self.count + 1
        if count >= self.hold_at:
            self.on_hold(count)
        self.depth += 1
        if self.recorder is not None:
            self.recorder.enter(count, what, size, self.detail)
        at = count % SLOTS
        sign = self.words[at] = (count << _HALF) + self._kinds[what] + (size & _LOW)
        for words in self._seen:
            its = words[at]  # read once: another rank may be writing it
            if its != sign and its >> _HALF == count:
                raise self._parted(words)
        return True

    def leave(self) -> None:
        """Go on from a point."""
        self.depth -= 1
        if self.recorder is not None:
            self.recorder.leave()

    def recent(self, most: int) -> list[str]:
        """Name the last points, the last one last."""
        words = [self.words[count % SLOTS] for count in range(max(0, self.count - most + 1), self.count + 1)]
        return [self._kinds.named(word & (_LOW << 16)) for word in words]

    def last_of(self, words: Sequence[int]) -> str:
        """Name the last point that another rank came to."""
        return self._kinds.named(max(words[:SLOTS]) & (_LOW << 16))

    def end(self) -> None:
        """Note that this rank comes to no further point."""
        self.words[SLOTS] = self.count + 1

    def go_private(self) -> None:
        """From now on, write to nobody's memory and look at nobody's."""
        self.hold_at = NOWHERE
        self.recorder = None
        self.words = memoryview(bytearray(_BYTES)).cast("Q")
        self.see({})

    def _parted(self, words: Any) -> Exception:
        try:
            return self.parted(next(rank for rank, its in self.others.items() if its is words))
        finally:
            self.depth -= 1


def count_of(words: Sequence[int]) -> int:
    """Count the points that a rank has come to."""
    return int(max(words[:SLOTS])) >> _HALF


def differ(local: Sequence[int], other: Sequence[int]) -> int | None:
    """Give the number of the first point that two ranks know to differ in."""
    pairs = zip(local[:SLOTS], other[:SLOTS], strict=True)
    return min((mine >> _HALF for mine, its in pairs if mine != its and mine >> _HALF == its >> _HALF), default=None)


def local_words(descriptor: int) -> Any:
    """Make the memory behind a file the words of this rank."""
    os.ftruncate(descriptor, _BYTES)
    return memoryview(mmap.mmap(descriptor, _BYTES)).cast("Q")


def others_words(descriptor: int) -> Any:
    """See the words of another rank."""
    return memoryview(mmap.mmap(descriptor, _BYTES, access=mmap.ACCESS_READ)).cast("Q")


def _go_on(count: int) -> None:
    pass


def _unexplained(rank: int) -> Exception:
    return RuntimeError(f"rank {rank} came to another point")


def _leave_to_the_parent() -> None:
    for trail in list(_living):
        trail.go_private()


_living: weakref.WeakSet[Trail] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):  # a child is no rank, and must not write where its parent does
    os.register_at_fork(after_in_child=_leave_to_the_parent)
