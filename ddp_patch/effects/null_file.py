"""What ranks other than 0 hold in place of a file that the script writes."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
from collections.abc import Callable
from typing import IO, Any

Open = Callable[..., Any]
KEPT = 2**30  # bytes; larger files are not copied where that can be helped


class _Nowhere(io.FileIO):
    """Takes everything, keeps nothing, and knows where it stands."""

    def __init__(self, name: Any, size: int) -> None:
        with tempfile.TemporaryFile() as file:  # whose descriptor can be synced and asked for its size
            super().__init__(os.dup(file.fileno()), "w")
        os.ftruncate(self.fileno(), size)
        self.name = name
        self._at = self._size = size

    def write(self, data: Any) -> int:
        count = memoryview(data).nbytes
        self._at += count
        if self._at > self._size:
            self._size = self._at
            os.ftruncate(self.fileno(), self._size)  # takes no room
        return count

    def tell(self) -> int:
        return self._at

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + {0: 0, 1: self._at, 2: self._size}[whence]
        return self._at

    def truncate(self, size: int | None = None) -> int:
        self._size = self._at if size is None else size
        os.ftruncate(self.fileno(), self._size)
        return self._size


def before(path: str, mode: str) -> IO[bytes]:
    """What a file held before rank 0 opens it, if that is read, or how much of it, if it is added to."""
    copy = tempfile.TemporaryFile()  # noqa: SIM115 — the caller closes it
    if "a" in mode or "r" in mode:
        with contextlib.suppress(OSError), io.FileIO(path) as there:  # rank 0 meets the error as well
            if "+" in mode:
                shutil.copyfileobj(there, copy)
            else:
                copy.truncate(os.fstat(there.fileno()).st_size)
    copy.flush()
    return copy


def null_file(real: Open, file: Any, mode: str, options: dict[str, Any], content: IO[bytes]) -> Any:
    """Make a file object that looks like rank 0's and writes to nowhere."""
    if "+" in mode or options.get("buffering", -1) == 0:
        descriptor = os.dup(content.fileno())
        os.lseek(descriptor, 0, os.SEEK_END if "a" in mode else os.SEEK_SET)
        # "x" asks that there be no such file, as rank 0 found.
        return real(file, mode.replace("x", "w"), **{**options, "opener": lambda path, flags: descriptor})
    raw: Any = _Nowhere(file, os.fstat(content.fileno()).st_size)
    writer = io.BufferedWriter(raw)
    if "b" in mode:
        return writer
    # Encoding and line ends are decided by io.open.
    model = real(os.devnull, "w", **{name: value for name, value in options.items() if name != "closefd"})
    with model:
        return io.TextIOWrapper(writer, model.encoding, model.errors, options.get("newline"), model.line_buffering)
