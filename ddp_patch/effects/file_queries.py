"""Looking at files and folders without opening them: what one process would see."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import Any

from .disks import UNSEEN, Disks
from .entries import Entries, listed
from .files import Files
from .ownership import Ownership
from .rank_zero import RankZero


class FileQueries:
    """Calls functions of ``os`` that change nothing."""

    def __init__(self, rank_zero: RankZero, ownership: Ownership, files: Files, disks: Disks) -> None:
        """Look at what the script wrote.

        Args:
            rank_zero: who acts for all ranks.
            ownership: tells who is looking.
            files: of the script.
            disks: of the ranks' hosts.
        """
        self._rank_zero = rank_zero
        self._ownership = ownership
        self._files = files
        self._disks = disks

    def call(self, what: str, real: Callable[..., Any], path: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        """Call a function where its path means what it means to rank 0.

        Args:
            what: its name.
            real: the function.
            path: its first argument.
            args: the others.
            options: likewise.

        Raises:
            OSError: on every rank, what rank 0 gets.
        """
        if isinstance(path, int) or not self._files.is_known or not self._rank_zero.in_lockstep():
            return real(self._files.leaders(path), *args, **options)
        key = self._files.key("." if path is None else path)
        is_elsewhere = (
            self._disks.has_changes
            and not self._ownership.asks_itself()
            and self._disks.concerns(key, around=what != "os.chdir")
        )
        is_restless = what in _LISTS and self._files.written.is_restless(key) and not self._ownership.asks_itself()
        if not (is_elsewhere or is_restless or (what in _SIZES and self._files.written.is_unfinished(key))):
            return real(self._files.leaders(path), *args, **options)
        if what == "os.chdir":
            if not self._disks.sees(key):
                raise FileNotFoundError(errno.ENOENT, UNSEEN.format("made"), os.fspath(path))
            return real(path)
        if what == "os.scandir":
            return Entries("." if path is None else path, self._rank_zero.call(what, lambda: listed(real, path), [key]))
        return self._rank_zero.call(what, lambda: real(path, *args, **options), [key])


_LISTS = ("os.listdir", "os.scandir")
_SIZES = ("os.stat", "os.lstat")
