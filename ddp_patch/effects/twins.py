"""What ranks other than 0 hold of files that they write to and may read back: one copy of each, which has a name.

Whatever opens or maps a file while it is written to has the same copy, as on rank 0 it has the same file.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

from .descriptors import is_written_to
from .null_file import KEPT, Open

_MOST = 64  # copies that are kept beside those in use
_TICK = 2.0  # seconds, at most (FAT)


@dataclass
class _Twin:
    name: str
    size: int = 0  # bytes that there were
    is_whole: bool = False  # or of the file's size alone
    origin: tuple[int, int, int] | None = None  # of the file that was copied, which may be found as it was


class Twins:
    """The copies, by rank 0's names for the files."""

    def __init__(self, scratch: Callable[[], str]) -> None:
        """Start with none.

        Args:
            scratch: gives the folder for them.
        """
        self._scratch = scratch
        self._count = itertools.count()
        self._kept: dict[str, _Twin] = {}  # that of the file that was opened last at the end
        self._most, self._room = _MOST, KEPT  # copies and bytes, beyond which those that nobody holds go

    def prepare(self, path: str, mode: str, content: IO[bytes] | None, is_current: bool) -> str:
        """Give the name of a file's copy, as the file is before rank 0 opens it.

        Args:
            path: of the file.
            mode: in which it is opened; where it keeps what there is, and does not read it, its size is enough.
            content: what there is, where this rank does not see it.
            is_current: all that writes to the file now writes to its copy on the other ranks.
        """
        twin = self._kept.pop(path, None) or self._made()
        self._kept[path] = twin
        if not ("r" in mode or "a" in mode):  # emptied when it is opened
            twin.is_whole, twin.origin = True, None
        elif not (is_current and twin.is_whole):
            self._catch_up(twin, path, mode, content)
        self._let_go()
        return twin.name

    @staticmethod
    def open(real: Open, file: Any, mode: str, options: dict[str, Any], name: str) -> Any:
        """Open a copy as rank 0 opens the file; "x" asks that there be none, as rank 0 found."""
        opener = {"opener": lambda _, flags: os.open(name, flags)}
        return real(file, mode.replace("x", "w"), **{**options, **opener})

    def read(self, path: str) -> IO[bytes]:
        """Open the copy of a file, or where there is none the file, to read it."""
        return io.FileIO(self._kept[path].name if path in self._kept else path)

    def moved(self, path: str, leaders: str) -> None:
        """Note what rank 0 calls a file."""
        if path != leaders and path in self._kept:
            self._kept[leaders] = self._kept.pop(path)

    def closed(self, path: str) -> None:
        """Let go of a copy that nobody will look for, unless somebody holds it."""
        twin = self._kept.get(path)
        if twin is not None and twin.origin is None and not is_written_to(twin.name):
            self._drop(path)

    def forget(self, path: str) -> None:
        """Let go of the copies of files that are gone; whoever holds one keeps it."""
        for name in [name for name in self._kept if name == path or name.startswith(path + os.sep)]:
            self._drop(name)

    def _made(self) -> _Twin:
        name = os.path.join(self._scratch(), f"{next(self._count)}.twin")
        io.FileIO(name, "x").close()
        return _Twin(name)

    def _catch_up(self, twin: _Twin, path: str, mode: str, content: IO[bytes] | None) -> None:
        origin = _identity(path) if content is None else None
        if origin is not None and origin == twin.origin:  # with what this rank has changed, as rank 0's file has
            return
        twin.is_whole = "+" in mode
        with contextlib.ExitStack() as opened:
            if content is None:
                try:
                    content = opened.enter_context(io.FileIO(path))
                except OSError:  # which rank 0 meets as well
                    content = io.BytesIO()
            twin.size = content.seek(0, os.SEEK_END)
            copy = opened.enter_context(io.BufferedWriter(io.FileIO(twin.name, "r+")))
            if twin.is_whole:
                content.seek(0)
                shutil.copyfileobj(content, copy)
                twin.size = copy.tell()
            copy.truncate(twin.size)  # not before: somebody may have a map of it
        # What is written in one tick of the file system's clock leaves no trace in the time.
        is_old = origin is not None and time.time() - origin[2] / 1e9 >= _TICK
        twin.origin = origin if is_old and twin.is_whole and twin.size <= KEPT else None

    def _let_go(self) -> None:
        if len(self._kept) <= self._most and self._total_size() <= self._room:
            return
        for path in list(self._kept)[:-1]:
            if not is_written_to(self._kept[path].name):
                self._drop(path)
        self._most, self._room = max(_MOST, 2 * len(self._kept)), max(KEPT, 2 * self._total_size())

    def _total_size(self) -> int:
        return sum(twin.size for twin in self._kept.values() if twin.is_whole)

    def _drop(self, path: str) -> None:
        os.unlink(self._kept.pop(path).name)


def _identity(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
