"""Pipes to commands that rank 0 runs for all."""

from __future__ import annotations

import io
import os
import weakref
from collections.abc import Iterable
from typing import Any

from .rank_zero import RankZero

_numbered: weakref.WeakValueDictionary[int, Pipe] = weakref.WeakValueDictionary()


def pipe_of(file: Any) -> Pipe | None:
    """Give the pipe that is meant, by itself or by its descriptor; None for another file."""
    if isinstance(file, Pipe):
        return file
    pipe = _numbered.get(file) if isinstance(file, int) else None
    return None if pipe is None or pipe.closed else pipe


class Pipe:
    """A pipe to a command that runs on rank 0: what is read from it, every rank gets."""

    def __init__(self, rank_zero: RankZero, real: Any, name: str, is_text: bool) -> None:
        """Stand for rank 0's.

        Args:
            rank_zero: who acts for all ranks.
            real: rank 0's pipe; on other ranks anything.
            name: of the pipe.
            is_text: gives text, not bytes.
        """
        self.real = real
        self.closed = False
        self._nothing: io.FileIO | None = None  # of another rank, that has a descriptor to look at
        self._rank_zero = rank_zero
        self._name = name
        self._is_text = is_text

    def __iter__(self) -> Pipe:
        """Read line by line."""
        return self

    def __enter__(self) -> Pipe:
        """Close it at the end."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close it."""
        self.close()

    def __next__(self) -> Any:
        """Read the next line."""
        line = self.readline()
        if not line:
            raise StopIteration
        return line

    def __getattr__(self, name: str) -> Any:
        """Pass on what else rank 0's pipe can."""
        return getattr(self.real, name)

    def fileno(self) -> int:
        """Give a descriptor, by which ``select`` and ``os.read`` know the pipe; another rank's leads nowhere."""
        if self.closed:
            raise ValueError("I/O operation on closed file")
        file = self.real
        if file is None:
            file = self._nothing = self._nothing or io.FileIO(os.devnull, "r+")
        number = int(file.fileno())
        _numbered[number] = self
        return number

    def ended(self) -> None:
        """Be closed, as rank 0's is."""
        self.closed = True
        if self._nothing is not None:
            self._nothing.close()

    def read(self, *size: int) -> Any:
        """Read what is left, or so much of it."""
        return self._ask("read", *size)

    def readline(self, *size: int) -> Any:
        """Read a line."""
        return self._ask("readline", *size)

    def readlines(self, *hint: int) -> Any:
        """Read all lines."""
        return self._ask("readlines", *hint)

    def write(self, data: Any) -> Any:
        """Write to the command."""
        return self._ask("write", data)

    def writelines(self, lines: Iterable[Any]) -> None:
        """Write lines to the command."""
        for line in lines:
            self.write(line)

    def flush(self) -> Any:
        """Send what was written."""
        return self._ask("flush")

    def close(self) -> None:
        """Close it."""
        if not self.closed:
            self.ended()
            self._ask("close")

    def read1(self, *size: int) -> Any:
        """Read what has come, or so much of it."""
        return self._ask("read1", *size)

    def peek(self, *size: int) -> Any:
        """Look at what has come."""
        return self._ask("peek", *size)

    def readinto(self, buffer: Any) -> int:
        """Read into memory, as much as it holds."""
        data = self.read(memoryview(buffer).nbytes)
        memoryview(buffer).cast("B")[: len(data)] = data
        return len(data)

    def readable(self) -> bool:
        """Tell whether it is the command's output."""
        return self._name != "stdin"

    def writable(self) -> bool:
        """Tell whether it is the command's input."""
        return self._name == "stdin"

    def seekable(self) -> bool:
        """Pipes are not, and say so in ``seek`` and ``tell``."""
        return False

    def seek(self, *where: int) -> int:
        """Pipes cannot."""
        raise io.UnsupportedOperation("underlying stream is not seekable")

    tell = seek

    def _ask(self, what: str, *args: Any) -> Any:
        if not self._rank_zero.in_lockstep():
            if self._rank_zero.is_leader:
                return getattr(self.real, what)(*args)
            return "" if self._is_text else b""  # the end, for a thread
        return self._rank_zero.call(f"{self._name}.{what}", lambda: getattr(self.real, what)(*args))
