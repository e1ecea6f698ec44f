"""Standard input, whichever way the script reads it: rank 0 reads, and every rank gets what it read."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

from .pipes import Pipe, pipe_of
from .prompts import Prompts
from .rank_zero import RankZero

_NAMES = ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")


class Input(Pipe):
    """A file object that reads rank 0's standard input."""

    def __init__(
        self, prompts: Prompts, rank_zero: RankZero, real: Any, is_terminal: bool, name: str = "sys.stdin"
    ) -> None:
        """Stand for rank 0's.

        Args:
            prompts: of the ranks.
            rank_zero: who acts for all ranks.
            real: this rank's standard input.
            is_terminal: rank 0's is one.
            name: of the file object.
        """
        super().__init__(rank_zero, real, name, is_text=hasattr(real, "encoding"))
        self._prompts = prompts
        self._is_terminal = is_terminal

    def fileno(self) -> int:
        """This rank's own, which leads nowhere on others than rank 0."""
        return int(self.real.fileno())

    def isatty(self) -> bool:
        """As on rank 0."""
        return self._is_terminal

    @property
    def buffer(self) -> Input:
        """The bytes of it."""
        return _Bytes(self._prompts, self._rank_zero, self.real.buffer, self._is_terminal, f"{self._name}.buffer")

    def detach(self) -> Input:
        """Give the bytes of it, and be of no use any more."""
        found = self.buffer
        self.real.detach()
        return found

    def close(self) -> None:
        """Close it, on each rank as it comes to that: it may be that nobody holds it any more."""
        if not self.closed:
            self.closed = True
            if self._rank_zero.is_leader:
                self.real.close()

    def seekable(self) -> bool:
        """Tell whether it is a file."""
        return bool(self._ask("seekable"))

    def seek(self, *where: int) -> int:
        """Go to a place in a file."""
        return int(self._ask("seek", *where) or 0)

    def tell(self, *_: int) -> int:
        """Tell where in a file it stands."""
        return int(self._ask("tell") or 0)

    def _ask(self, what: str, *args: Any) -> Any:
        nothing = "" if self._is_text else b""
        return self._prompts.ask(f"{self._name}.{what}", lambda: getattr(self.real, what)(*args), nothing=nothing)


class _Bytes(Input):
    """One that gives bytes."""

    def read1(self, *size: int) -> Any:
        """Read what is there."""
        return self._ask("read1", *size)

    def peek(self, *size: int) -> Any:
        """Look at what is there."""
        return self._ask("peek", *size)

    def readinto(self, room: Any) -> int:
        """Read into memory."""
        found = self.read(len(memoryview(room).cast("B")))
        memoryview(room).cast("B")[: len(found)] = found
        return len(found)

    readinto1 = readinto


class StandardInput:
    """Takes over what reads standard input by its descriptor."""

    def __init__(self, prompts: Prompts, rank_zero: RankZero) -> None:
        """Take over nothing yet.

        Args:
            prompts: of the ranks.
            rank_zero: who acts for all ranks.
        """
        self._prompts = prompts
        self._rank_zero = rank_zero
        self.is_terminal = False

    def file(self, real: Any) -> Input:
        """What stands for this rank's ``sys.stdin``."""
        return Input(self._prompts, self._rank_zero, real, self.is_terminal)

    def opens(self, file: Any, mode: str) -> bool:
        """Tell whether a file that all ranks open is standard input."""
        return is_it(file, by_name=True) and not any(letter in mode for letter in "wax+") and self._is_asked()

    def open(self, real: Callable[..., Any], file: Any, mode: str, options: dict[str, Any]) -> Any:
        """Open it, as ``open(0)`` does."""
        if not self._rank_zero.is_leader and isinstance(file, int):
            options = {**options, "closefd": False}  # where it leads is not the script's to change
        opened = real(file, mode, **options)
        kind = _Bytes if "b" in mode else Input
        return kind(self._prompts, self._rank_zero, opened, self.is_terminal, "standard input")

    def read(self, real: Callable[[int, int], bytes], descriptor: int, size: int) -> bytes:
        """Read from a descriptor, as ``os.read`` does."""
        if pipe_of(descriptor) is not None and self._is_asked():
            return bytes(self._rank_zero.call("os.read", lambda: real(descriptor, size)))
        if not (is_it(descriptor) and self._is_asked()):
            return real(descriptor, size)
        return bytes(self._prompts.ask("os.read", lambda: real(descriptor, size)))

    def call(self, what: str, real: Callable[..., Any], file: Any, args: Any) -> Any:
        """Call a function of ``termios`` for the terminal of rank 0."""
        if not (is_it(file) and self._is_asked()):
            return real(file, *args)
        return self._rank_zero.call(what, lambda: real(file, *args))

    def select(self, real: Callable[..., Any], kinds: Sequence[Any], timeout: Any) -> Any:
        """Wait until one of several can be read or written: of standard input and a command's pipes, rank 0 tells."""
        kinds = [list(kind) for kind in kinds]
        is_input = any(map(is_it, kinds[0]))
        if not ((is_input or any(map(pipe_of, itertools.chain(*kinds)))) and self._is_asked()):
            return real(*kinds, *timeout)

        def leaders() -> list[list[int]]:
            found = real(*kinds, *timeout)
            return [
                [place for place, one in enumerate(kind) if any(one is other for other in ready)]
                for kind, ready in zip(kinds, found, strict=True)
            ]

        if not is_input or (timeout and timeout[0] is not None and timeout[0] <= 0):
            places = self._rank_zero.call("select.select", leaders)
        else:
            places = self._prompts.ask("select.select", leaders)
        return tuple([kind[place] for place in there] for kind, there in zip(kinds, places, strict=True))

    def _is_asked(self) -> bool:
        return self._rank_zero.in_lockstep()


def is_it(file: Any, *, by_name: bool = False) -> bool:
    """Tell standard input, or its descriptor, from other files."""
    if isinstance(file, Input):
        return True
    if isinstance(file, int):
        return file == 0 and not isinstance(file, bool)
    return by_name and isinstance(file, (str, bytes, os.PathLike)) and os.fsdecode(file) in _NAMES
