"""File objects of ranks in step: they close together, and raise together what rank 0 meets."""

from __future__ import annotations

import contextlib
import io
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from ..portable import portable
from .rank_zero import RankZero


class Watched:
    """What a file object tells of itself."""

    def __init__(self, closed: Callable[[str], None], rank_zero: RankZero, path: str) -> None:
        """Watch a file object that was opened for writing.

        Args:
            closed: learns of it.
            rank_zero: who acts for all ranks.
            path: of the file.
        """
        self._closed = closed
        self._rank_zero = rank_zero
        self._path = path
        self._failure: OSError | None = None

    def write(self, write: Callable[[], Any], data: Any = b"") -> Any:
        """Write or flush on this rank alone. An error waits until all ranks can raise it, at their next effect."""
        if self._failure is None:
            try:
                return write()
            except OSError as error:
                self._fail(error)
                self._tell()
        return _size(data)

    def gets(self, data: Any) -> bool:
        """Take note of what is about to be written; tell whether it is to be."""
        if self._rank_zero.note_output is not None and self._rank_zero.in_lockstep():
            self._rank_zero.note_output("written", data)
        return not self._rank_zero.mutes(data)

    def together(self, what: str, action: Callable[[], None], error: BaseException | None = None) -> None:
        """Close on all ranks, which raise what rank 0 meets.

        Args:
            what: names it.
            action: closes the file of this rank.
            error: that the script met before, and raises.
        """
        if not self._rank_zero.in_lockstep():
            action()
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            return

        def leaders() -> Any:
            try:
                action()
            except OSError as raised:
                self._fail(raised)
            if self._failure is not None:
                raise self._failure
            # Those of the system, which C code met that writes to the descriptor itself.
            return portable(error) if isinstance(error, OSError) and type(error).__module__ == "builtins" else None

        if self._rank_zero.pending is self._failure:
            self._rank_zero.pending = None  # told now
        try:
            earlier_error = self._rank_zero.call(what, leaders, [self._path])
        finally:
            if not self._rank_zero.is_leader:
                action()
            if what == "close":
                self._closed(self._path)
            self._failure = None  # told; the frames that it went through hold the file
        if earlier_error is not None and error is None:  # where it was written to, on rank 0 alone
            raise earlier_error

    def ask_rank_zero(self, what: str, ask: Callable[[], int]) -> int:
        """Ask for what may differ between ranks, as the length of what was written by the clock: rank 0 says it."""
        if not self._rank_zero.in_lockstep():
            return ask()
        return int(self._rank_zero.call(what, ask, [self._path]))

    def dropped(self, action: Callable[[], None]) -> None:
        """Close a file object that nobody holds any more: when that is may differ between ranks."""
        try:
            action()
        except OSError as error:
            self._fail(error)
            self._tell()

    def _tell(self) -> None:
        """Have all ranks raise, as soon as they can, what one process raised when it wrote."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_globals.get("__name__") == "logging":
                return  # which says that it could not write, and goes on
            frame = frame.f_back
        if self._rank_zero.is_leader:
            self._rank_zero.pending = self._failure

    def _fail(self, error: BaseException | None) -> None:
        if self._failure is None and isinstance(error, OSError):
            self._failure = error.with_traceback(None)  # whose frames hold the file


class _InStep:
    """Of file objects that flush and close together with those of the other ranks."""

    watched: Watched
    _busy = False  # flushing or closing: Python's own file objects do so through these very methods

    def write(self, data: Any) -> Any:
        if self._busy or self.watched.gets(data):
            return self.watched.write(lambda: super(_InStep, self).write(data), data)  # type: ignore[misc]
        return _size(data)

    def flush(self) -> None:
        # Not in lockstep: progress bars flush by the clock.
        flush = super().flush  # type: ignore[misc]
        if self._busy or self.closed or self._is_dropped():  # type: ignore[attr-defined]
            flush()
        else:
            self._alone(lambda: self.watched.write(flush))

    def tell(self) -> int:
        tell = super().tell  # type: ignore[misc]
        return tell() if self._busy or self.closed else self.watched.ask_rank_zero("tell", tell)  # type: ignore[attr-defined]

    def close(self) -> None:
        close = super().close  # type: ignore[misc]
        if self._busy or self.closed:  # type: ignore[attr-defined]
            close()
        elif self._is_dropped():
            self._alone(lambda: self.watched.dropped(close))
        else:
            self._alone(lambda: self.watched.together("close", close))

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if self.closed or self._is_dropped():  # type: ignore[attr-defined]
            self.close()
            return
        close = super().close  # type: ignore[misc]
        self._alone(lambda: self.watched.together("close", close, error))

    def _is_dropped(self) -> bool:
        return bool(getattr(self, "_finalizing", False))  # set by IOBase's finalizer (CPython)

    def _alone(self, action: Callable[[], None]) -> None:
        self._busy = True
        try:
            action()
        finally:
            self._busy = False


class _Text(_InStep, io.TextIOWrapper):
    pass


class _Writer(_InStep, io.BufferedWriter):
    pass


class _Random(_InStep, io.BufferedRandom):
    tell = io.BufferedRandom.tell  # of what this rank reads back


def _size(data: Any) -> int:
    return len(data) if isinstance(data, str) else memoryview(data).nbytes


def in_step(plain: Any, mode: str, options: dict[str, Any], watched: Watched) -> Any:
    """Make a file object flush and close together with those of the other ranks."""
    shared: Any
    if isinstance(plain, io.TextIOWrapper):
        encoding, errors, buffering = plain.encoding, plain.errors, plain.line_buffering
        shared = _Text(plain.detach(), encoding, errors, options.get("newline"), buffering)
        shared.mode = mode
    elif isinstance(plain, io.BufferedRandom):
        shared = _Random(plain.detach())
    elif isinstance(plain, io.BufferedWriter):
        shared = _Writer(plain.detach())
    else:
        return plain  # unbuffered: every write is the system's
    shared.watched = watched
    _alive.add(shared)
    return shared


def flush_all() -> None:
    """Write what the script has left in files that it did not close: later, Python may be gone."""
    for stream in list(_alive):
        with contextlib.suppress(OSError, ValueError):
            if not stream.closed:
                stream.flush()


_alive: weakref.WeakSet[Any] = weakref.WeakSet()
