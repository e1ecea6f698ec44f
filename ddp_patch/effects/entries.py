"""What ``os.scandir`` gives on ranks that do not see the folder: rank 0's files, by name and kind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any


def listed(real: Callable[..., Any], path: Any) -> list[tuple[Any, ...]]:
    """List a folder, as what can be handed over."""
    with real(path) as found:
        return [(entry.name, entry.inode(), entry.is_symlink(), *_kinds(entry)) for entry in found]


def _kinds(entry: Any) -> Iterator[bool]:
    for kind in ("is_dir", "is_file"):
        for follows in (False, True):
            yield getattr(entry, kind)(follow_symlinks=follows)


class DirEntry:
    """As ``os.DirEntry``."""

    def __init__(self, folder: Any, name: Any, number: int, is_link: bool, *kinds: bool) -> None:
        """Say what it is.

        Args:
            folder: as it was given to ``os.scandir``.
            name: of the file in it.
            number: of its inode.
            is_link: and not what that leads to.
            kinds: whether it is a folder, itself or by a link; whether it is a file, likewise.
        """
        self.path = os.path.join(folder, name)
        self.name = name
        self._number = number
        self._is_link = is_link
        self._kinds = kinds

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """As ``os.DirEntry.is_dir``."""
        return self._kinds[follow_symlinks]

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """As ``os.DirEntry.is_file``."""
        return self._kinds[2 + follow_symlinks]

    def is_symlink(self) -> bool:
        """As ``os.DirEntry.is_symlink``."""
        return self._is_link

    def inode(self) -> int:
        """As ``os.DirEntry.inode``."""
        return self._number

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """As ``os.DirEntry.stat``."""
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def __fspath__(self) -> Any:
        """As of ``os.DirEntry``."""
        return self.path

    def __repr__(self) -> str:
        """As of ``os.DirEntry``."""
        return f"<DirEntry {self.name!r}>"


class Entries:
    """As the iterator of ``os.scandir``."""

    def __init__(self, folder: Any, found: list[tuple[Any, ...]]) -> None:
        """Begin with the first.

        Args:
            folder: as it was given to ``os.scandir``.
            found: what ``listed`` found there.
        """
        self._left = iter([DirEntry(folder, *entry) for entry in found])

    def __iter__(self) -> Iterator[DirEntry]:
        """Go on."""
        return self

    def __next__(self) -> DirEntry:
        """Give the next one."""
        return next(self._left)

    def close(self) -> None:
        """Give no more."""
        self._left = iter(())

    def __enter__(self) -> Entries:
        """Close it at the end."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Close it."""
        self.close()
