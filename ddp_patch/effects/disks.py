"""Disks that not all ranks see: what the job has changed is looked at where rank 0 is, and handed to the others.

What the job left alone is read where each rank is. A host may have a file of the same name from an earlier run, so that
what is there tells nothing: all ranks compare what they find once for each folder.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import tempfile
import time
from collections.abc import Callable
from typing import IO, Any

from ..batch.world import World
from .ownership import above
from .rank_zero import RankZero

UNSEEN = "rank 0 {} it, but this rank's host does not see it. Write it to a file system that all hosts share"
_PATIENCE = 30.0  # seconds until a file that rank 0 wrote must have appeared on this host
_CHUNK = 2**22  # bytes; the store takes no entry of more than 8 MiB (torch 2.13, libuv)


class Disks:
    """Knows which folders some rank does not see as rank 0 does."""

    def __init__(self, rank_zero: RankZero, world: World, are_one: bool) -> None:
        """Start with nothing changed.

        Args:
            rank_zero: who acts for all ranks.
            world: the ranks.
            are_one: all ranks see the same files.
        """
        self._rank_zero = rank_zero
        self._world = world
        self._are_one = are_one
        self._changed: set[str] = set()  # by rank 0's names
        self._above: set[str] = set()  # folders that these are in, at any depth
        self._apart: dict[str, bool] = {}  # folder -> some rank does not see rank 0's files there
        self._unseen: set[str] = set()  # folders in which this rank does not

    @property
    def has_changes(self) -> bool:
        """Tell whether anything was changed that some rank may not see."""
        return bool(self._changed)

    def changed(self, path: str) -> None:
        """Note that rank 0 made, changed or removed a file or a folder."""
        if not (self._are_one or self.is_changed(path)):
            self._changed.add(path)
            self._above.update(above(path))

    def concerns(self, path: str, *, around: bool = False) -> bool:
        """Tell whether rank 0's view of a file or folder has to be handed over. Every rank asks.

        Args:
            path: by rank 0's name.
            around: also of a folder in which something was changed.
        """
        if not self._changed or not (self.is_changed(path) or (around and path in self._above)):
            return False
        return self.are_apart(path)

    def are_apart(self, path: str) -> bool:
        """Tell whether some rank does not see rank 0's file of that name. Every rank asks."""
        if self._are_one:
            return False
        folder = os.path.dirname(path)
        if folder not in self._apart:
            with self._rank_zero.alone():
                local = _identity(path) or _identity(folder)
            found = [parts[0] for parts in self._world.share([local])]
            if not any(found):
                return False  # nothing that could tell
            self._apart[folder] = any(other != found[0] for other in found)
            if found[self._world.rank] != found[0]:
                self._unseen.add(folder)
        return self._apart[folder]

    def ask(self, what: str, path: str, real: Callable[[], Any]) -> Any:
        """Give every rank what a function says where rank 0 is.

        Raises:
            OSError: on every rank, what it raises there.
        """
        return self._rank_zero.call(what, real, [path])

    def is_around(self, path: str) -> bool:
        """Tell whether the job changed something there, or in a folder of that name."""
        return path in self._above or self.is_changed(path)

    def refuse_apart(self, what: str, path: str) -> None:
        """Refuse a file that C code reads on every rank, where some rank does not see rank 0's. Every rank asks.

        Raises:
            FileNotFoundError: on every rank.
        """
        if self.are_apart(path) and self.ask(what, path, lambda: os.path.exists(path)):
            why = f"{what} reads it on every rank, but not all hosts see rank 0's. Put it on a disk that they share"
            raise FileNotFoundError(errno.ENOENT, why, path)

    def is_changed(self, path: str) -> bool:
        """Tell whether the job made or changed a file, or a folder that it is in."""
        return path in self._changed or any(part in self._changed for part in above(path))

    def sees(self, path: str) -> bool:
        """Tell whether this rank sees rank 0's file of that name, as far as was asked."""
        return os.path.dirname(path) not in self._unseen

    def copy(self, path: str, name: Any = None) -> IO[bytes]:
        """Give rank 0's file as it is now; rank 0 itself, which has it, gets nothing. Every rank asks.

        Args:
            path: by rank 0's name.
            name: as the script names it, for the error.

        Raises:
            OSError: on every rank, what rank 0 gets.
        """
        with contextlib.ExitStack() as opened:
            copy = opened.enter_context(tempfile.TemporaryFile())
            stream: list[IO[bytes]] = []

            def read() -> bytes:
                if not stream:
                    stream.append(opened.enter_context(io.FileIO(name or path)))
                return stream[0].read(_CHUNK)

            while chunk := self._rank_zero.call("open", read, [path]):
                if not self._rank_zero.is_leader:
                    copy.write(chunk)
            copy.flush()
            copy.seek(0)
            return os.fdopen(os.dup(copy.fileno()), "rb")

    @staticmethod
    def wait_for(path: Any, real: Callable[[], Any]) -> Any:
        """Open a file that rank 0 wrote, and that the file system of this host may not show yet.

        Raises:
            FileNotFoundError: it has not come.
        """
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            try:
                return real()
            except FileNotFoundError:
                time.sleep(0.05)
        raise FileNotFoundError(errno.ENOENT, UNSEEN.format("wrote"), os.fspath(path))

    def before(self, path: str, mode: str) -> IO[bytes] | None:
        """What a file held before rank 0 opens it, where this rank does not see that. Every rank asks."""
        if self._are_one or not ("a" in mode or "r" in mode) or not self.are_apart(path):
            return None
        content: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 — the caller closes it
        with contextlib.suppress(OSError):  # rank 0 meets the error as well
            if "+" in mode:
                content.close()
                content = self.copy(path)
            else:
                content.truncate(self.ask("open", path, lambda: os.stat(path).st_size))
        if not self.sees(path):
            return content
        content.close()
        return None


def _identity(path: str) -> tuple[int, int, int] | None:
    """What no two files have in common, on whatever disks: when one was written tells in nanoseconds."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
