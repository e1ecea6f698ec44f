"""Files that a script writes: rank 0's are real, the other ranks write the same things to nowhere.

Everything else about such a file object is as on one process: its name, where it stands, what it raises when it is
flushed or closed, and what it reads if it was opened for that as well.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from typing import IO, Any

from .disks import Disks
from .file_objects import Watched, in_step
from .followed import Followed, reader
from .names import Names
from .null_file import KEPT, Open, before, null_file
from .ownership import Ownership
from .rank_zero import RankZero
from .scratch import make_scratch
from .twins import Twins
from .written import Written


class Files:
    """Opens files for the script."""

    def __init__(self, rank_zero: RankZero, ownership: Ownership, disks: Disks) -> None:
        """Start with no file written.

        Args:
            rank_zero: who acts for all ranks.
            ownership: tells which files are the script's.
            disks: of the ranks' hosts.
        """
        self._rank_zero = rank_zero
        self._ownership = ownership
        self._disks = disks
        self.written = Written(rank_zero)
        self._scratch: str | None = None  # a folder for what has to have a name
        self._names = Names()
        self._twins = Twins(self.scratch)
        rank_zero.renamed = self._names.rename

    def open(self, real: Open, file: Any, mode: str, options: dict[str, Any]) -> Any:
        """Open a file as ``io.open`` does.

        Args:
            real: ``io.open`` itself.
            file: path or descriptor.
            mode: of opening.
            options: of ``io.open``, by name.

        Raises:
            OSError: on every rank, what rank 0 gets.
        """
        writes = any(letter in mode for letter in "wax+")
        if not writes:
            return self._read(real, file, mode, options)
        is_silent = self._rank_zero.is_silent()
        if options.get("opener") is not None or not (is_silent or self._rank_zero.in_lockstep()):
            return real(file, mode, **options)
        if not self._ownership.covers(file):
            return real(file, mode, **options)
        if is_silent:
            with before(os.path.abspath(os.fsdecode(file)), mode) as content:
                return null_file(real, file, mode, options, content)
        return self._write(real, os.fspath(file), mode, options)

    def descriptor(self, real: Callable[..., int], path: Any, flags: int, args: Any, kwargs: Any) -> int:
        """Open a descriptor for writing, as ``os.open`` does."""
        absolute = os.path.abspath(os.fsdecode(path))
        mode = "w" if flags & os.O_TRUNC else "a" if flags & os.O_WRONLY else "r+"
        content, name, is_twinned = self._prepare(absolute, mode, keeps_copy=True)  # rank 0 has not begun
        opened: list[int] = []
        with content:
            self._rank_zero.barrier_call(
                "os.open", lambda: opened.append(real(path, flags, *args, **kwargs)), [absolute]
            )
            if not self._rank_zero.is_leader:
                # A file with a name: whoever locks one looks whether it was removed meanwhile.
                with self._rank_zero.alone():
                    opened.append(os.open(name, os.O_RDWR | flags & (os.O_APPEND | os.O_TRUNC)))
        self.goes_on(absolute, is_twinned=is_twinned)  # when a descriptor is closed is not told
        return opened[0]

    def scratch(self) -> str:
        """This rank's own folder, until the end."""
        if self._scratch is None:
            self._scratch = make_scratch()
        return self._scratch

    def close(self) -> None:
        """Remove what this rank needed meanwhile."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def leaders(self, path: Any) -> Any:
        """What rank 0 calls a path of this rank."""
        return self._names.leaders(path)

    def finished(self, path: Any) -> None:
        """Note that rank 0 has written a file."""
        self.written.finished(self.key(path))
        self.changed(path)

    def changed(self, path: Any) -> None:
        """Note that rank 0 made or changed something."""
        self._disks.changed(self.key(path))

    def is_made(self, path: Any) -> bool:
        """Tell whether rank 0 made it, where some rank may not see it."""
        return self._disks.has_changes and self._disks.is_around(self.key(path))

    def goes_on(self, path: str, *, is_twinned: bool = False) -> None:
        """Note that rank 0 writes to a file from now on, and whether the others write to copies of it."""
        leaders = self.key(path)
        self._twins.moved(path, leaders)
        self._disks.changed(leaders)
        self.written.begins(leaders, is_twinned=is_twinned)

    def mapped(self, path: Any) -> None:
        """Note that the script may write to a file through memory, without telling anybody."""
        if self._rank_zero.in_lockstep() and self._ownership.covers(path):
            self.written.mapped(self.key(path))

    def closed(self, path: str) -> None:
        """Note that a file object was closed by all ranks."""
        key = self.key(path)
        self.written.ends(key)
        with self._rank_zero.alone():
            self._twins.closed(key)

    def forget(self, path: Any) -> None:
        """Note that rank 0 removed a file, or put another one in its place."""
        key = self.key(path)
        self._disks.changed(key)
        self.written.forget(key)
        with self._rank_zero.alone():
            self._twins.forget(key)

    @property
    def is_known(self) -> bool:
        """Tell whether any path means something else than what this rank finds there."""
        return bool(self.written or self._names or self._disks.has_changes)

    def key(self, path: Any) -> str:
        """Give the name that rank 0 gave a file."""
        return str(self.leaders(os.path.abspath(os.fsdecode(path))))

    # --- reading ----------------------------------------------------------------------------------------------------

    def _read(self, real: Open, file: Any, mode: str, options: dict[str, Any]) -> Any:
        if isinstance(file, int) or not self.is_known or not self._rank_zero.in_lockstep():
            return real(file, mode, **options)
        key = self.key(file)
        if options.get("opener") is None:
            is_elsewhere = self._is_elsewhere(key)
            if self.written.goes_on(key):
                return self._follow(real, file, mode, options, key)
            if is_elsewhere:
                return self._read_copy(real, file, mode, options, key)
        try:
            return real(self.leaders(file), mode, **options)
        except FileNotFoundError:
            if not self.written.is_finished(key) or self._rank_zero.is_leader:
                raise
        return self._disks.wait_for(file, lambda: real(self.leaders(file), mode, **options))

    def _is_elsewhere(self, key: str) -> bool:
        return self._disks.has_changes and not self._ownership.asks_itself() and self._disks.concerns(key)

    def _read_copy(self, real: Open, file: Any, mode: str, options: dict[str, Any], key: str) -> Any:
        """Read a file that rank 0 alone sees: the others get what it holds."""
        with self._disks.copy(key, file) as copy:
            if self._rank_zero.is_leader or self._disks.sees(key):
                return real(self.leaders(file), mode, **options)
            return real(file, mode, **{**options, "opener": lambda path, flags: os.dup(copy.fileno())})

    def _follow(self, real: Open, file: Any, mode: str, options: dict[str, Any], key: str) -> Any:
        """Read a file that rank 0 may go on writing to."""
        opened: list[IO[bytes]] = []
        self._rank_zero.call("open", lambda: opened.append(io.FileIO(file)), [key], broadcast_result=False)

        def copy() -> IO[bytes] | None:
            is_copied = not self.written.is_twinned(key) and self._rank_zero.call("open", lambda: _size(key) <= KEPT)
            copied = self._disks.copy(key, file) if is_copied else None
            return None if self._rank_zero.is_leader else copied or self._twins.read(key)

        leaders = opened[0] if opened else None
        return reader(real, mode, options, Followed(file, key, self._rank_zero, leaders, copy))

    # --- writing ----------------------------------------------------------------------------------------------------

    def _write(self, real: Open, file: Any, mode: str, options: dict[str, Any]) -> Any:
        absolute = os.path.abspath(os.fsdecode(file))
        content, name, is_twinned = self._prepare(absolute, mode, keeps_copy="+" in mode)  # rank 0 has not begun
        opened: list[Any] = []
        with content:
            self._rank_zero.barrier_call(
                "open", lambda: opened.append(real(file, mode, **options)), [absolute], broadcast_result=False
            )
            if not self._rank_zero.is_leader:
                with self._rank_zero.alone():
                    opened.append(
                        self._twins.open(real, file, mode, options, name)
                        if name
                        else null_file(real, file, mode, options, content)
                    )
        self.goes_on(absolute, is_twinned=is_twinned)
        return in_step(opened[0], mode, options, Watched(self.closed, self._rank_zero, absolute))

    def _prepare(self, absolute: str, mode: str, *, keeps_copy: bool) -> tuple[IO[bytes], str, bool]:
        """Look at a file before rank 0 opens it, when all have come to that line and what it wrote before is there.

        Returns:
            what it held, the name of this rank's copy if it has one, and whether that is as rank 0's file from now on.
        """
        key = self.key(absolute)
        goes_on = self.written.goes_on(key)
        is_current = self.written.is_twinned(key)
        content, name = self._disks.before(key, mode), ""
        if not self._rank_zero.is_leader:
            with self._rank_zero.alone():
                if keeps_copy or is_current:
                    name = self._twins.prepare(key, mode, content, is_current)
                elif content is None:
                    content = before(key, mode)
        is_whole = "a" not in mode or "+" in mode  # and not the size alone
        return content or io.BytesIO(), name, is_current or (keeps_copy and is_whole and not goes_on)


def _size(path: str) -> int:
    return os.stat(path).st_size if os.path.exists(path) else 0
