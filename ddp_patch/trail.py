"""The points of the script at which ranks wait for each other, in the order in which this rank comes to them.

A program that is the same on every rank comes to the same points in the same order. Ranks of one host write theirs to
memory that the others read, so that whoever comes to another point than the rest learns it before it waits there. It
costs no message: a point is two hundred nanoseconds.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
import weakref
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from .ledger import is_library

SLOTS = 64  # points that are remembered; a power of two
_SIZE = (SLOTS + 1) * 8  # bytes; the last word is 1 + the count at which the program ended
_WORDS = 1 << 32
_MOST = 4096  # entries of a cache


class Trail:
    """Where this rank is among the points at which ranks meet. Only what the script's main thread does is in order."""

    def __init__(self) -> None:
        """Begin before the first point, in memory of this process."""
        self.count = 0  # points that this rank has come to
        self.depth = 0  # > 0 while it is at one, and may be waiting
        self.what = "the start"
        self.detail: Sequence[Any] = ()
        self.kinds = [""] * SLOTS  # what each of the last points was
        self.lines: list[tuple[CodeType, int] | None] = [None] * SLOTS  # code of the script, and the instruction
        self.words: Any = memoryview(bytearray(_SIZE)).cast("Q")
        self.others: dict[int, Any] = {}  # rank of this host -> its words
        self.parted: Callable[[int], Exception] = _unexplained
        self._sums: dict[str, int] = {}
        self._libraries: dict[CodeType, bool] = {}
        self._main = threading.main_thread().ident
        _living.add(self)

    def enter(self, what: str, size: int | None = None, detail: Sequence[Any] = ()) -> bool:
        """Come to a point, in a pair with ``leave``.

        Args:
            what: names the kind of point, alike on every rank.
            size: of what is sent, alike on every rank; the line is kept of points that have none, which may be passed
                before the others come.
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
        at = count % SLOTS
        self.kinds[at] = what
        sum_ = self._sums.get(what)
        if sum_ is None:
            sum_ = self._sum(what)
        if size is None:
            self.lines[at], size = self._line(sys._getframe(1)), 0
        else:
            self.lines[at] = None
        sign = self.words[at] = count * _WORDS + (sum_ + size) % _WORDS
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

    def recent(self, most: int) -> list[str]:
        """Describe the last points, the last one last."""
        told = []
        for count in range(max(1, self.count - most + 1), self.count + 1):
            line = self.lines[count % SLOTS]
            told.append(self.kinds[count % SLOTS] + ("" if line is None else f" in {line_of(*line)}"))
        return told

    def end(self) -> None:
        """Note that this rank comes to no further point."""
        self.words[SLOTS] = self.count + 1

    def go_private(self) -> None:
        """From now on, write to nobody's memory and look at nobody's."""
        self.words = memoryview(bytearray(_SIZE)).cast("Q")
        self.others = {}

    def _sum(self, what: str) -> int:
        if len(self._sums) > _MOST:
            self._sums.clear()
        sum_ = self._sums[what] = zlib.crc32(what.encode())
        return sum_

    def _line(self, frame: FrameType | None) -> tuple[CodeType, int] | None:
        # Which line an instruction belongs to is slow to tell (CPython goes through a table), so it is told later.
        libraries = self._libraries
        while frame is not None:
            code = frame.f_code
            is_of_library = libraries.get(code)
            if is_of_library is None:
                if len(libraries) > _MOST:
                    libraries.clear()
                is_of_library = libraries[code] = is_library(code.co_filename)
            if not is_of_library:
                return code, frame.f_lasti
            frame = frame.f_back
        return None


@lru_cache(_MOST)
def line_of(code: CodeType, instruction: int) -> str:
    """Name the line of an instruction."""
    lines = (line for start, end, line in code.co_lines() if start <= instruction < end and line is not None)
    return f"{Path(code.co_filename).name}:{next(lines, code.co_firstlineno)}"


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
