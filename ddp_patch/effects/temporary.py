"""Temporary files and folders of the script: each rank has its own; rank 0's commands write to rank 0's."""

from __future__ import annotations

import filecmp
import os
import shutil

from .rank_zero import RankZero


class TemporaryPlaces:
    """Those that the script made on every rank, in the order in which it did."""

    def __init__(self, rank_zero: RankZero) -> None:
        """Know of none.

        Args:
            rank_zero: who acts for all ranks.
        """
        self._rank_zero = rank_zero
        self._own: list[str] = []

    def made(self, path: str) -> None:
        """Remember one: every rank comes here for the same one of the script's."""
        self._own.append(os.path.abspath(path))

    def there(self) -> dict[int, str]:
        """Tell which are there yet, on rank 0."""
        return {number: path for number, path in enumerate(self._own) if os.path.exists(path)}

    def follow(self, its: dict[int, str]) -> None:
        """Have in one's own what a command left in rank 0's, as far as this host has both.

        Args:
            its: what is there on rank 0.
        """
        if not its:
            return
        with self._rank_zero.alone():
            for number, path in its.items():
                if not self._rank_zero.is_leader and os.path.exists(path):
                    _mirror(path, self._own[number])
        self._rank_zero.barrier_call("a temporary folder that a command wrote to", _nothing)  # which may remove it next


def _nothing() -> None:
    pass


def _mirror(source: str, target: str) -> None:
    if not os.path.isdir(source):
        _copy(source, target)
        return
    found = {entry.name: entry.is_dir() for entry in os.scandir(source)}
    for entry in list(os.scandir(target)) if os.path.isdir(target) else []:
        if found.get(entry.name) is not entry.is_dir():
            shutil.rmtree(entry.path) if entry.is_dir() else os.remove(entry.path)
    os.makedirs(target, exist_ok=True)
    for name in found:
        _mirror(os.path.join(source, name), os.path.join(target, name))


def _copy(source: str, target: str) -> None:
    if not (os.path.exists(target) and filecmp.cmp(source, target, shallow=False)):
        shutil.copy2(source, target)
