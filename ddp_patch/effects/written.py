"""Which files rank 0 has written, and which it may go on writing to, by its names for them."""

from __future__ import annotations

import os

from .descriptors import is_written_to
from .rank_zero import RankZero


class Written:
    """The same on every rank."""

    def __init__(self, rank_zero: RankZero) -> None:
        """Start with no file written.

        Args:
            rank_zero: who knows whether it still holds a file.
        """
        self._rank_zero = rank_zero
        self._open: dict[str, int] = {}  # file -> times opened for writing, and not known to be closed
        self._mapped: set[str] = set()  # written to through memory
        self._twinned: set[str] = set()  # of these: what writes to them writes to the other ranks' copies as well
        self._finished: set[str] = set()
        self._restless: set[str] = set()  # folders in which rank 0 has temporary files; when these go is not told

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._open or self._finished or self._restless)

    def begins(self, path: str, *, is_twinned: bool = False) -> None:
        """Note that rank 0 writes to a file from now on, and whether the others write to copies of it."""
        self._finished.discard(path)
        self._open[path] = self._open.get(path, 0) + 1
        (self._twinned.add if is_twinned else self._twinned.discard)(path)

    def ends(self, path: str) -> None:
        """Note that all ranks closed a file object."""
        left = self._open.get(path, 1) - 1
        if left:
            self._open[path] = left
        else:
            self.finished(path)

    def finished(self, path: str) -> None:
        """Note that a file is whole."""
        self._open.pop(path, None)
        self._finished.add(path)

    def mapped(self, path: str) -> None:
        """Note that a file may be written to through memory, without telling anybody."""
        self._mapped.add(path)

    def forget(self, path: str) -> None:
        """Note that rank 0 removed a file, or put another one in its place."""
        inside = path + os.sep
        self._finished = {name for name in self._finished if name != path and not name.startswith(inside)}
        self._mapped.discard(path)
        self._twinned.discard(path)
        self._open.pop(path, None)

    def commanded(self) -> None:
        """Note that a command ran, which may have removed anything."""
        self._finished.clear()

    def is_finished(self, path: str) -> bool:
        """Tell whether rank 0 has written it."""
        return path in self._finished

    def is_unfinished(self, path: str) -> bool:
        """Tell whether rank 0 may go on writing to a file. Every rank asks."""
        if path in self._open and not self._goes_on(path):  # nobody holds the file object any more, for one
            self.finished(path)
        return path in self._open

    def goes_on(self, path: str) -> bool:
        """Tell whether rank 0 may go on writing to a file, through memory too. Every rank asks."""
        if self.is_unfinished(path):
            return True
        if path in self._mapped and not self._goes_on(path):
            self._mapped.discard(path)
        if path not in self._mapped:
            self._twinned.discard(path)
        return path in self._mapped

    def is_twinned(self, path: str) -> bool:
        """Tell whether the other ranks' copies of a file are as it is, as long as it goes on."""
        return path in self._twinned

    def comes_and_goes_in(self, folder: str) -> None:
        """Note that rank 0 has a temporary file in a folder of the script's, until it comes to its end."""
        self._restless.add(folder)

    def is_restless(self, folder: str) -> bool:
        """Tell whether what a rank finds in a folder depends on how far rank 0 is."""
        return folder in self._restless

    def _goes_on(self, path: str) -> bool:
        return bool(self._rank_zero.call("open", lambda: is_written_to(path), [path]))
