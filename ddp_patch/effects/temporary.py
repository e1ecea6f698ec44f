"""Temporary files and folders of the script: each rank has its own; rank 0's commands write to rank 0's."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from typing import Any

from .rank_zero import RankZero

Entries = dict[tuple[int, str], tuple[Any, ...]]  # number of the place, path in it -> what is there
Changes = list[tuple[str, int, str, tuple[Any, ...]]]  # the place on rank 0, its number, path in it, what is there now


class TemporaryPlaces:
    """Those that the script made on every rank, in the order in which it did."""

    def __init__(self, rank_zero: RankZero) -> None:
        """Know of none.

        Args:
            rank_zero: who acts for all ranks.
        """
        self._rank_zero = rank_zero
        self._own: list[str] = []
        self._gone: set[int] = set()  # of rank 0's

    def made(self, path: str) -> None:
        """Remember one: every rank comes here for the same one of the script's."""
        self._own.append(os.path.abspath(path))

    def look(self) -> Entries:
        """Tell what is there on rank 0, before a command."""
        found: Entries = {}
        for number, place in enumerate(self._own):
            if number not in self._gone:
                _look_into(number, place, "", found)
                if (number, "") not in found:
                    self._gone.add(number)
        return found

    def changes(self, before: Entries) -> Changes:
        """Tell what a command changed on rank 0."""
        now = self.look()
        changed = [key for key in now if now[key] != before.get(key)]
        return [
            (self._own[number], number, path, now.get((number, path), ()))
            for number, path in [*changed, *(key for key in before if key not in now)]
        ]

    def follow(self, changes: Changes) -> None:
        """Have in one's own what a command changed in rank 0's, as far as this host has both.

        Args:
            changes: that rank 0 told.
        """
        if not changes:
            return
        if not self._rank_zero.is_leader:
            with self._rank_zero.alone():
                for place, number, path, entry in changes:
                    with contextlib.suppress(OSError):  # of another host, or gone again: whoever reads it hears of it
                        own = self._own[number]
                        if entry[:1] == ("link",) and (entry[1] + os.sep).startswith(place + os.sep):
                            entry = "link", own + entry[1].removeprefix(place)
                        _apply(_within(place, path), _within(own, path), entry)
        self._rank_zero.barrier_call("a temporary place that a command wrote to", _nothing)  # which may go next


def _nothing() -> None:
    pass


def _within(place: str, path: str) -> str:
    return os.path.join(place, path) if path else place


def _look_into(number: int, place: str, path: str, found: Entries) -> None:
    with contextlib.suppress(OSError):  # a process that goes on changes it meanwhile
        its = _within(place, path)
        status = os.lstat(its)
        if stat.S_ISDIR(status.st_mode):
            found[number, path] = ("folder",)
            for name in os.listdir(its):
                _look_into(number, place, os.path.join(path, name), found)
        elif stat.S_ISLNK(status.st_mode):
            found[number, path] = ("link", os.readlink(its))
        elif stat.S_ISREG(status.st_mode):
            found[number, path] = ("file", status.st_mode, status.st_size, status.st_mtime_ns, status.st_ino)


def _apply(source: str, target: str, entry: tuple[Any, ...]) -> None:
    if os.path.isdir(target) and not os.path.islink(target):
        if entry[:1] == ("folder",):
            return
        shutil.rmtree(target)
    elif os.path.lexists(target) and entry[:1] != ("file",):
        os.remove(target)
    if entry[:1] == ("folder",):
        os.makedirs(target, exist_ok=True)
    elif entry[:1] == ("link",):
        os.symlink(entry[1], target)
    elif entry:
        made = f"{target}.ddp_patch"  # whoever has the old one mapped keeps it
        shutil.copy2(source, made)
        os.replace(made, target)
