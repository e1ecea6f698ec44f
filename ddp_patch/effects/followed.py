"""Reading a file that rank 0 may go on writing to: each read is rank 0's, which finds what one process would find."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from typing import IO, Any

from .null_file import Open
from .rank_zero import RankZero

_BUFFER = 2**16  # bytes; a read of each is a turn of all ranks
_CHUNK = 2**22


class Followed(io.RawIOBase):
    """The file as it is whenever it is read."""

    mode = "rb"

    def __init__(
        self, file: Any, path: str, rank_zero: RankZero, leaders: IO[bytes] | None, copy: Callable[[], IO[bytes] | None]
    ) -> None:
        """Stand at its beginning.

        Args:
            file: as the script names it.
            path: by rank 0's name.
            rank_zero: who reads for all ranks.
            leaders: the file itself, on rank 0.
            copy: gives what the others have of it, for what reads by a descriptor; None on rank 0. Every rank asks.
        """
        self.name = file
        self._path = path
        self._rank_zero = rank_zero
        self._file = leaders
        self._copy = copy
        self._is_copied = False
        self._at = 0

    def readinto(self, buffer: Any, /) -> int:
        """Read what rank 0 finds."""
        room = memoryview(buffer).cast("B")
        found = self._ask("read", lambda: os.pread(self.fileno(), min(len(room), _CHUNK), self._at))
        room[: len(found)] = found
        self._at += len(found)
        return len(found)

    def readall(self) -> bytes:
        """Read on to the end that there is now."""
        return b"".join(iter(lambda: self.read(_CHUNK) or b"", b""))

    def readable(self) -> bool:
        """Tell that it is."""
        return True

    def seekable(self) -> bool:
        """Tell that it is."""
        return True

    def tell(self) -> int:
        """Give the place of the next read."""
        return self._at

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Go to a place, of the end as rank 0 finds it."""
        begin = self._ask("seek", lambda: os.fstat(self.fileno()).st_size) if whence == 2 else (0, self._at)[whence]
        if begin + offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._at = begin + offset
        return self._at

    def fileno(self) -> int:
        """Give a descriptor: rank 0's of the file, the others' of what they have of it by now."""
        if not self._is_copied and self._rank_zero.in_lockstep():
            self._is_copied = True
            self._file = self._copy() or self._file
        if self._file is None:
            self._file = io.FileIO(self._path)
        return self._file.fileno()

    def close(self) -> None:
        """Close this rank's descriptor."""
        if self._file is not None:
            self._file.close()
        super().close()

    def _ask(self, what: str, real: Callable[[], Any]) -> Any:
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        return self._rank_zero.call(what, real, [self._path]) if self._rank_zero.in_lockstep() else real()


def reader(real: Open, mode: str, options: dict[str, Any], raw: Followed) -> Any:
    """Make the file object that ``io.open`` makes of a raw one that is read."""
    with real(os.devnull, mode, **options) as model:  # encoding and line ends are decided there
        if options.get("buffering", -1) == 0:
            return raw
        buffered = io.BufferedReader(raw, _BUFFER)
        if "b" in mode:
            return buffered
        newline = options.get("newline")
        text: Any = io.TextIOWrapper(buffered, model.encoding, model.errors, newline, model.line_buffering)
    text.mode = mode
    return text
