"""Functions that change folders and files as a whole: rank 0 calls them, all ranks get what it got."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from typing import Any

from .files import Files
from .ownership import Ownership, above
from .rank_zero import RankZero
from .scratch import is_being_made


class Folders:
    """Calls functions of ``os`` and ``shutil`` once."""

    def __init__(self, rank_zero: RankZero, ownership: Ownership, files: Files) -> None:
        """Start with nothing done.

        Args:
            rank_zero: who acts for all ranks.
            ownership: tells which files are the script's.
            files: of the script.
        """
        self._rank_zero = rank_zero
        self._ownership = ownership
        self._files = files
        self._made: set[str] = set()  # temporary folders in the script's

    @property
    def are_others(self) -> bool:
        """Tell whether it is rank 0's folders that the script sees now."""
        return not self._rank_zero.is_leader and (self._rank_zero.in_lockstep() or self._rank_zero.is_silent())

    def is_the_scripts(self, folder: Any) -> bool:
        """Tell whether a temporary file or folder is to be made in one of the script's, by all ranks alike.

        Args:
            folder: that was asked for; None for the system's.
        """
        return (
            isinstance(folder, (str, bytes, os.PathLike))
            and self._rank_zero.in_lockstep()
            and not is_being_made()
            and self._ownership.covers(os.path.join(os.fsdecode(folder), "x"), passing=("tempfile",))
        )

    def make(self, real: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Make a temporary folder in one of the script's once: whatever is in it is the script's.

        Raises:
            OSError: on every rank, what rank 0 gets.
        """
        made = self._rank_zero.barrier_call("tempfile.mkdtemp", lambda: real(*args, **kwargs))
        self._made.add(os.path.abspath(os.fsdecode(made)))
        self._files.changed(made)
        return made

    def call(self, what: str, real: Callable[..., Any], paths: Sequence[Any], args: Any, kwargs: Any) -> Any:
        """Call a function once, if one of its paths is the script's.

        Args:
            what: its name.
            real: the function.
            paths: among its arguments.
            args: all of them.
            kwargs: likewise.

        Raises:
            OSError: on every rank, what rank 0 gets.
        """
        is_silent = self._rank_zero.is_silent()
        if not (is_silent or self._rank_zero.in_lockstep()) or any(
            kwargs.get(name) is not None for name in _DESCRIPTORS
        ):
            return real(*args, **kwargs)
        if not self._ownership.covers(*paths, passing=("tempfile",) if self._is_made(paths) else ()):
            return real(*args, **kwargs)
        if is_silent:
            return None
        named = [os.path.abspath(os.fsdecode(path)) for path in paths]
        result = self._rank_zero.barrier_call(what, lambda: real(*args, **kwargs), named)
        for path in named:
            if what in _KEEPS:
                self._files.changed(path)
            else:
                self._files.forget(path)
        if what in _MOVES and not self._rank_zero.is_leader:
            self._moved(*named)
        return result

    def _is_made(self, paths: Sequence[Any]) -> bool:
        named = (os.path.abspath(os.fsdecode(p)) for p in paths if isinstance(p, (str, bytes, os.PathLike)))
        return bool(self._made) and any(part in self._made for path in named for part in (path, *above(path)))

    def _moved(self, source: str, target: str) -> None:
        """Remove what every rank had made for itself, where rank 0's was moved away or replaced."""
        with self._rank_zero.alone():
            if self._ownership.is_temporary(source) and os.path.isdir(source) and not os.path.islink(source):
                shutil.rmtree(source, ignore_errors=True)
            for path in (source, target):
                if self._ownership.is_temporary(path):
                    with contextlib.suppress(OSError):  # a folder that stays: what was moved is in rank 0's
                        os.unlink(path)

    def open(self, real: Callable[..., int], path: Any, flags: int, args: Any, kwargs: Any) -> int:
        """Open a descriptor: for writing, rank 0's is real."""
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        is_silent = self._rank_zero.is_silent()
        if not writes or not (is_silent or self._rank_zero.in_lockstep()) or kwargs.get("dir_fd") is not None:
            return real(path, flags, *args, **kwargs)
        if not self._ownership.covers(path):
            return real(path, flags, *args, **kwargs)
        if is_silent:
            return real(os.devnull, os.O_RDWR)
        return self._files.descriptor(real, path, flags, args, kwargs)


_DESCRIPTORS = ("dir_fd", "src_dir_fd", "dst_dir_fd")
# What is written stays the file of that name.
_KEEPS = (
    *("os.chmod", "os.utime", "os.truncate", "os.mkdir", "os.makedirs"),
    *("shutil.copymode", "shutil.copystat"),
)
_MOVES = ("os.rename", "os.renames", "os.replace", "shutil.move")
