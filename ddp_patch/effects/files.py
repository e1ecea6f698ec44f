"""Files that a script writes: rank 0's are real, the other ranks write the same things to nowhere.

Everything else about such a file object is as on one process: its name, where it stands, what it raises when it is
flushed or closed, and what it reads if it was opened for that as well.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import IO, Any

from .disks import UNSEEN, Disks
from .file_objects import Watched, in_step
from .null_file import KEPT, Open, before, null_file
from .ownership import Ownership
from .rank_zero import RankZero
from .scratch import make_scratch
from .written import Written

_PATIENCE = 30.0  # seconds until a file that rank 0 wrote must have appeared on this host


class Files:
    """Opens files for the script."""

    _look = staticmethod(os.lstat)  # not by a module's name, which the patch of os.lstat would be bound to

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
        self._renamed: dict[str, str] = {}  # what this rank calls otherwise than rank 0 -> rank 0's name
        rank_zero.renamed = self._rename

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
            with before(os.path.abspath(os.fsdecode(file)), mode) as held:
                return null_file(real, file, mode, options, held)
        return self._write(real, os.fspath(file), mode, options)

    def descriptor(self, real: Callable[..., int], path: Any, flags: int, args: Any, kwargs: Any) -> int:
        """Open a descriptor for writing, as ``os.open`` does."""
        own = os.path.abspath(os.fsdecode(path))
        opened: list[int] = []
        held = self._disks.before(own, "w" if flags & os.O_TRUNC else "r+")
        if self._rank_zero.is_leader:
            held.close()
            self._rank_zero.barrier_call("os.open", lambda: opened.append(real(path, flags, *args, **kwargs)), [own])
        else:
            with held:
                self._rank_zero.barrier_call("os.open", lambda: None, [own])
                opened.append(self._named(held))
        self.goes_on(own)  # when a descriptor is closed is not told
        return opened[0]

    def _named(self, held: IO[bytes]) -> int:
        """A descriptor of a copy that has a name: whoever locks a file looks whether it was removed meanwhile."""
        with self._rank_zero.alone():
            descriptor, _ = tempfile.mkstemp(dir=self.scratch())
            with open(os.dup(descriptor), "wb") as copy:
                held.seek(0)
                shutil.copyfileobj(held, copy)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor

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
        if not self._renamed or not isinstance(path, (str, bytes, os.PathLike)):
            return path
        own = os.path.abspath(os.fsdecode(path))
        with contextlib.suppress(OSError, ValueError):
            self._look(own)
            return path
        for name, leaders in self._renamed.items():
            if own == name or own.startswith(name + os.sep):
                return leaders + own[len(name) :]
        return path

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

    def goes_on(self, path: str) -> None:
        """Note that rank 0 writes to a file from now on."""
        path = self.key(path)
        self._disks.changed(path)
        self.written.begins(path)

    def mapped(self, path: Any) -> None:
        """Note that the script may write to a file through memory, without telling anybody."""
        if self._rank_zero.in_lockstep() and self._ownership.covers(path):
            self.written.mapped(self.key(path))

    def closed(self, path: str) -> None:
        """Note that a file object was closed by all ranks."""
        self.written.ends(self.key(path))

    def forget(self, path: Any) -> None:
        """Note that rank 0 removed a file, or put another one in its place."""
        own = self.key(path)
        self._disks.changed(own)
        self.written.forget(own)

    @property
    def is_known(self) -> bool:
        """Tell whether any path means something else than what this rank finds there."""
        return bool(self.written or self._renamed or self._disks.has_changes)

    def key(self, path: Any) -> str:
        """Give the name that rank 0 gave a file."""
        return str(self.leaders(os.path.abspath(os.fsdecode(path))))

    # --- reading ----------------------------------------------------------------------------------------------------

    def _read(self, real: Open, file: Any, mode: str, options: dict[str, Any]) -> Any:
        if isinstance(file, int) or not self.is_known or not self._rank_zero.in_lockstep():
            return real(file, mode, **options)
        own = self.key(file)
        if options.get("opener") is None:
            is_elsewhere = self._is_elsewhere(own)
            if not is_elsewhere and self.written.is_mapped(own):
                return self._read_mapped(real, file, mode, options, own)
            is_unfinished = self.written.is_unfinished(own)
            if is_unfinished or is_elsewhere:
                return self._read_copy(real, file, mode, options, own, is_unfinished)
        try:
            return real(self.leaders(file), mode, **options)
        except FileNotFoundError:
            if not self.written.is_finished(own) or self._rank_zero.is_leader:
                raise
        return self._wait_for(real, file, mode, options)

    def _is_elsewhere(self, own: str) -> bool:
        return self._disks.has_changes and not self._ownership.asks_itself() and self._disks.concerns(own)

    def _read_copy(
        self, real: Open, file: Any, mode: str, options: dict[str, Any], own: str, is_unfinished: bool
    ) -> Any:
        """Read a file that rank 0 may go on writing to, or alone sees: the others get what it holds."""
        with self._disks.copy(own, file) as copy:
            if self._rank_zero.is_leader or (self._disks.sees(own) and not is_unfinished):
                return real(self.leaders(file), mode, **options)
            return real(file, mode, **{**options, "opener": lambda path, flags: os.dup(copy.fileno())})

    def _read_mapped(self, real: Open, file: Any, mode: str, options: dict[str, Any], own: str) -> Any:
        """Read a file that rank 0 writes to through memory: the other ranks copy it while rank 0 waits."""
        self._rank_zero.barrier_call("open", lambda: None, [own])
        with before(own, "r+" if _size(own) < KEPT else "w") as held:
            self._rank_zero.barrier_call("open", lambda: None, [own])
            if self._rank_zero.is_leader or _size(own) >= KEPT:
                return real(file, mode, **options)
            held.seek(0)
            return real(file, mode, **{**options, "opener": lambda path, flags: os.dup(held.fileno())})

    def _wait_for(self, real: Open, file: Any, mode: str, options: dict[str, Any]) -> Any:
        """Wait for a file that rank 0 wrote, and that the file system of this host does not show yet."""
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            try:
                return real(self.leaders(file), mode, **options)
            except FileNotFoundError:
                time.sleep(0.05)
        raise FileNotFoundError(errno.ENOENT, UNSEEN.format("wrote"), os.fspath(file))

    # --- writing ----------------------------------------------------------------------------------------------------

    def _write(self, real: Open, file: Any, mode: str, options: dict[str, Any]) -> Any:
        own = os.path.abspath(os.fsdecode(file))
        held = self._disks.before(own, mode)  # rank 0 has not begun
        if self._rank_zero.is_leader:
            held.close()
            opened: list[Any] = []
            self._rank_zero.barrier_call(
                "open", lambda: opened.append(real(file, mode, **options)), [own], broadcast_result=False
            )
            plain = opened[0]
        else:
            with held:
                self._rank_zero.barrier_call("open", lambda: None, [own])
                plain = null_file(real, file, mode, options, held)
        self.goes_on(own)
        return in_step(plain, mode, options, Watched(self.closed, self._rank_zero, own))

    def _rename(self, own: Sequence[str], leaders: Sequence[str]) -> None:
        for ours, theirs in zip(own, leaders, strict=True):
            self._renamed.pop(theirs, None)  # rank 0 has a file of that very name now
            if ours != theirs:
                # The part that differs: runs/12:00:01 for runs/12:00:00, whatever lies in it.
                while os.path.basename(ours) == os.path.basename(theirs):
                    ours, theirs = os.path.dirname(ours), os.path.dirname(theirs)
                self._renamed[ours] = theirs


def _size(path: str) -> int:
    return os.stat(path).st_size if os.path.exists(path) else 0
