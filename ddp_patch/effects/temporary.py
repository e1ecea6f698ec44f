"""Temporary files and folders of the script: each rank has its own; rank 0's commands write to rank 0's."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import stat
from collections.abc import Iterator
from typing import Any, NamedTuple

from .descriptors import path_of
from .rank_zero import RankZero

Entry = tuple[Any, ...]
Changes = list[tuple[str, int, str, Entry]]  # the place on rank 0, its number, path in it, what is there now
_FEW = 1000  # entries, which take some milliseconds to look at


class Seen(NamedTuple):
    """What was there before a command."""

    entries: dict[tuple[int, str], Entry]  # number of the place, path in it -> what is there
    passed: frozenset[int]  # places that were not looked into


class TemporaryPlaces:
    """Those that the script made on every rank, in the order in which it did."""

    def __init__(self, rank_zero: RankZero) -> None:
        """Know of none.

        Args:
            rank_zero: who acts for all ranks.
        """
        self._rank_zero = rank_zero
        self._places: list[str] = []
        self._gone: set[int] = set()  # of rank 0's
        self._large: set[int] = set()  # when they were last looked into

    def made(self, path: str) -> None:
        """Remember one: every rank comes here for the same one of the script's."""
        self._places.append(os.path.abspath(path))

    def look(self, arguments: Any) -> Seen:
        """Look at what is there on rank 0, before a command.

        Of large places only those are looked into that the command was told of.

        Args:
            arguments: of the command, and those of ``subprocess.Popen``.
        """
        text = "\0".join(_texts([arguments, _here(), *os.environ.values()])) if self._places else ""
        named = tuple(os.path.join(place, "") for place in self._places if os.path.basename(place) in text)
        entries: dict[tuple[int, str], Entry] = {}
        passed = set()
        for number, place in enumerate(self._places):
            is_named = os.path.join(place, "").startswith(named)
            if number in self._gone:
                continue
            if number in self._large and not is_named:
                passed.add(number)
                continue
            found = dict(itertools.islice(_entries(place), None if is_named else _FEW + 1))
            is_large = len(found) > _FEW
            (self._large.add if is_large else self._large.discard)(number)
            if not found:
                self._gone.add(number)
            elif is_large and not is_named:
                passed.add(number)
            else:
                entries.update({(number, path): entry for path, entry in found.items()})
        return Seen(entries, frozenset(passed))

    def changes(self, before: Seen) -> Changes:
        """Tell what a command changed on rank 0."""
        now: dict[tuple[int, str], Entry] = {}
        for number, place in enumerate(self._places):
            if number not in self._gone | before.passed:
                now.update({(number, path): entry for path, entry in _entries(place)})
        changed = [key for key in now if now[key] != before.entries.get(key)]
        return [
            (self._places[number], number, path, now.get((number, path), ()))
            for number, path in [*changed, *(key for key in before.entries if key not in now)]
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
                        local = self._places[number]
                        if entry[:1] == ("link",) and (entry[1] + os.sep).startswith(place + os.sep):
                            entry = "link", local + entry[1].removeprefix(place)
                        _apply(_within(place, path), _within(local, path), entry)
        self._rank_zero.barrier_call("a temporary place that a command wrote to", _nothing)  # which may go next


def _nothing() -> None:
    pass


def _within(place: str, path: str) -> str:
    return os.path.join(place, path) if path else place


def _texts(value: Any) -> Iterator[str]:
    """Give what may name a file, in what a command is told."""
    if isinstance(value, (str, bytes, os.PathLike)):
        yield os.fsdecode(value)
    elif isinstance(value, dict):
        yield from _texts([*value, *value.values()])
    elif isinstance(value, (list, tuple, set, frozenset)):
        for each in value:
            yield from _texts(each)
    elif hasattr(value, "fileno") or isinstance(value, int):
        yield path_of(value) or ""


def _here() -> str:
    with contextlib.suppress(FileNotFoundError):  # it may be gone
        return os.getcwd()
    return ""


def _entries(place: str, path: str = "") -> Iterator[tuple[str, Entry]]:
    """Give what is in a place, by its path in it; the place itself has an empty one."""
    with contextlib.suppress(OSError):  # a process that goes on changes it meanwhile
        its = _within(place, path)
        status = os.lstat(its)
        if stat.S_ISDIR(status.st_mode):
            yield path, ("folder",)
            for name in os.listdir(its):
                yield from _entries(place, os.path.join(path, name))
        elif stat.S_ISLNK(status.st_mode):
            yield path, ("link", os.readlink(its))
        elif stat.S_ISREG(status.st_mode):
            yield path, ("file", status.st_mode, status.st_size, status.st_mtime_ns, status.st_ino)


def _apply(source: str, target: str, entry: Entry) -> None:
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
