"""Files that a script writes: rank 0's are real, the other ranks write the same things to nowhere.

Everything else about such a file object is as on one process: its name, where it stands, what it raises when it is
flushed or closed, and what it reads if it was opened for that as well.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import IO, Any

from .ownership import Ownership
from .turns import Turns

_PATIENCE = 30.0  # seconds until a file that rank 0 wrote must have appeared on this host

Open = Callable[..., Any]


class Files:
    """Opens files for the script."""

    def __init__(self, turns: Turns, ownership: Ownership) -> None:
        """Start with no file written.

        Args:
            turns: of the ranks.
            ownership: tells which files are the script's.
        """
        self._turns = turns
        self._ownership = ownership
        self._open: dict[str, int] = {}  # files that may be unfinished -> times opened for writing and not closed
        self._finished: set[str] = set()
        self._renamed: dict[str, str] = {}  # what this rank calls otherwise than rank 0 -> rank 0's name
        turns.renamed = self._rename

    def open(self, real: Open, file: Any, mode: str, options: dict[str, Any]) -> Any:
        """Open a file as ``io.open`` does.

        Args:
            real: ``io.open`` itself.
            file: path or descriptor.
            mode: of opening.
            options: of ``io.open``, by name.

        Raises:
            OSError: on every rank, what rank 0 gets.
        """
        writes = any(letter in mode for letter in "wax+")
        if not writes:
            return self._read(real, file, mode, options)
        is_silent = self._turns.are_silent()
        if options.get("opener") is not None or not (is_silent or self._turns.are_taken()):
            return real(file, mode, **options)
        if not self._ownership.covers(file):
            return real(file, mode, **options)
        if is_silent:
            with _before(os.path.abspath(os.fsdecode(file)), mode) as before:
                return _stand_in(real, file, mode, options, before)
        return self._write(real, os.fspath(file), mode, options)

    def descriptor(self, real: Callable[..., int], path: Any, flags: int, args: Any, kwargs: Any) -> int:
        """Open a descriptor for writing, as ``os.open`` does."""
        own = os.path.abspath(os.fsdecode(path))
        self.goes_on(own)  # when a descriptor is closed cannot be told
        if self._turns.is_leader:
            opened: list[int] = []
            self._turns.take("os.open", lambda: opened.append(real(path, flags, *args, **kwargs)), [own])
            return opened[0]
        with _before(own, "w" if flags & os.O_TRUNC else "r+") as before:
            self._turns.take("os.open", lambda: None, [own])
            return os.dup(before.fileno())

    def stat(self, real: Callable[..., Any], path: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        """Look at a file: rank 0's view of one that is being written."""
        if isinstance(path, int) or not (self._open or self._renamed) or not self._turns.are_taken():
            return real(path, *args, **options)
        own = os.path.abspath(os.fsdecode(path))
        if own in self._open:
            return self._turns.follow("os.stat", lambda: real(path, *args, **options), [own])
        return real(self.leaders(path), *args, **options)

    def leaders(self, path: Any) -> Any:
        """What rank 0 calls a path of this rank."""
        if not self._renamed or not isinstance(path, (str, bytes, os.PathLike)):
            return path
        own = os.path.abspath(os.fsdecode(path))
        for name, leaders in self._renamed.items():
            if own == name or own.startswith(name + os.sep):
                return leaders + own[len(name) :]
        return path

    def finished(self, path: Any) -> None:
        """Note that rank 0 has written a file."""
        self._finished.add(os.path.abspath(os.fsdecode(path)))

    def goes_on(self, path: str) -> None:
        """Note that rank 0 writes to a file from now on."""
        self._finished.discard(path)
        self._open[path] = self._open.get(path, 0) + 1

    def closed(self, path: str) -> None:
        """Note that a file object was closed by all ranks."""
        left = self._open.get(path, 1) - 1
        if left:
            self._open[path] = left
        else:
            self._open.pop(path, None)
            self._finished.add(path)

    def forget(self, path: Any) -> None:
        """Note that rank 0 removed a file, or put another one in its place."""
        own = os.path.abspath(os.fsdecode(path))
        self._finished.discard(own)
        self._open.pop(own, None)

    # --- reading ----------------------------------------------------------------------------------------------------

    def _read(self, real: Open, file: Any, mode: str, options: dict[str, Any]) -> Any:
        if isinstance(file, int) or not (self._open or self._finished or self._renamed):
            return real(file, mode, **options)
        if not self._turns.are_taken():
            return real(file, mode, **options)
        own = os.path.abspath(os.fsdecode(file))
        if own in self._open and options.get("opener") is None:
            return self._read_unfinished(real, file, mode, options, own)
        try:
            return real(self.leaders(file), mode, **options)
        except FileNotFoundError:
            if own not in self._finished:
                raise
        return self._wait_for(real, file, mode, options)

    def _read_unfinished(self, real: Open, file: Any, mode: str, options: dict[str, Any], own: str) -> Any:
        """Read a file that rank 0 may go on writing to: the other ranks get what it held when rank 0 came here."""

        def held() -> bytes:
            with real(file, "rb") as stream:
                return bytes(stream.read())

        content = self._turns.follow("open", held, [own])
        if self._turns.is_leader:
            return real(file, mode, **options)
        return real(file, mode, **{**options, "opener": _opener(content or b"")})

    def _wait_for(self, real: Open, file: Any, mode: str, options: dict[str, Any]) -> Any:
        """Wait for a file that rank 0 wrote, and that the file system of this host does not show yet."""
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            try:
                return real(self.leaders(file), mode, **options)
            except FileNotFoundError:
                time.sleep(0.05)
        why = "rank 0 wrote it, but this rank's host does not see it. Write it to a file system that all hosts share"
        raise FileNotFoundError(errno.ENOENT, why, os.fspath(file))

    # --- writing ----------------------------------------------------------------------------------------------------

    def _write(self, real: Open, file: Any, mode: str, options: dict[str, Any]) -> Any:
        own = os.path.abspath(os.fsdecode(file))
        if self._turns.is_leader:
            opened: list[Any] = []
            self._turns.take("open", lambda: opened.append(real(file, mode, **options)), [own], hands_over=False)
            plain = opened[0]
        else:
            with _before(own, mode) as before:  # rank 0 has not begun
                self._turns.take("open", lambda: None, [own])
                plain = _stand_in(real, file, mode, options, before)
        self.goes_on(own)
        return in_step(plain, mode, options, Watched(self, self._turns, own))

    def _rename(self, own: Sequence[str], leaders: Sequence[str]) -> None:
        for ours, theirs in zip(own, leaders, strict=True):
            if ours != theirs:
                # The part that differs: runs/12:00:01 for runs/12:00:00, whatever lies in it.
                while os.path.basename(ours) == os.path.basename(theirs):
                    ours, theirs = os.path.dirname(ours), os.path.dirname(theirs)
                self._renamed[ours] = theirs


class Watched:
    """What a file object tells of itself."""

    def __init__(self, files: Files, turns: Turns, path: str) -> None:
        """Watch a file object that was opened for writing.

        Args:
            files: learns that it was closed.
            turns: of the ranks.
            path: of the file.
        """
        self._files = files
        self._turns = turns
        self._path = path
        self._failure: OSError | None = None

    def write(self, write: Callable[[], Any], size: int) -> Any:
        """Write on this rank alone. An error waits until all ranks can raise it, in ``flush`` or ``close``."""
        if self._failure is None:
            try:
                return write()
            except OSError as error:
                self._fail(error)
        return size

    def together(self, what: str, action: Callable[[], None], error: BaseException | None = None) -> None:
        """Flush or close on all ranks, which raise what rank 0 meets."""
        if not self._turns.are_taken():
            action()
            if self._failure is not None:
                raise self._failure
            return

        def leaders() -> None:
            try:
                action()
            except OSError as met:
                self._fail(met)
            self._fail(error)
            if self._failure is not None:
                raise self._failure

        try:
            self._turns.follow(what, leaders, [self._path], hands_over=False)
        finally:
            if not self._turns.is_leader:
                action()
            if what == "close":
                self._files.closed(self._path)

    def dropped(self, action: Callable[[], None]) -> None:
        """Close a file object that nobody holds any more: when that is may differ between ranks."""
        action()
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: BaseException | None) -> None:
        if self._failure is None and isinstance(error, OSError):
            self._failure = error


class _InStep:
    """Of file objects that flush and close together with those of the other ranks."""

    watched: Watched
    _busy = False  # flushing or closing: Python's own file objects do so through these very methods

    def write(self, data: Any) -> Any:
        return self.watched.write(lambda: super(_InStep, self).write(data), len(data))  # type: ignore[misc]

    def flush(self) -> None:
        flush = super().flush  # type: ignore[misc]
        if self._busy or self.closed or self._is_dropped():  # type: ignore[attr-defined]
            flush()
        else:
            self._alone(lambda: self.watched.together("flush", flush))

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
        try:
            self._alone(lambda: self.watched.together("close", close, error))
        except OSError as met:
            if met is not error:
                raise

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
    pass


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
    return shared


class _Nowhere(io.FileIO):
    """Takes everything, keeps nothing, and knows where it stands."""

    def __init__(self, name: Any, size: int) -> None:
        super().__init__(os.devnull, "w")
        self.name = name
        self._at = self._size = size

    def write(self, data: Any) -> int:
        count = memoryview(data).nbytes
        self._at += count
        self._size = max(self._size, self._at)
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
        return self._size


def _before(path: str, mode: str) -> IO[bytes]:
    """What a file held before rank 0 opens it, if that is read, or how much of it, if it is added to."""
    copy = tempfile.TemporaryFile()  # noqa: SIM115 — the caller closes it
    if "a" in mode or "r" in mode:
        with contextlib.suppress(OSError), io.FileIO(path) as held:  # rank 0 meets the error as well
            if "+" in mode:
                shutil.copyfileobj(held, copy)
            else:
                copy.truncate(os.fstat(held.fileno()).st_size)
    copy.flush()
    return copy


def _stand_in(real: Open, file: Any, mode: str, options: dict[str, Any], before: IO[bytes]) -> Any:
    """Make a file object that looks like rank 0's and writes to nowhere."""
    if "+" in mode or options.get("buffering", -1) == 0:
        own = os.dup(before.fileno())
        os.lseek(own, 0, os.SEEK_END if "a" in mode else os.SEEK_SET)
        # "x" asks that there be no such file, as rank 0 found.
        return real(file, mode.replace("x", "w"), **{**options, "opener": lambda path, flags: own})
    raw: Any = _Nowhere(file, os.fstat(before.fileno()).st_size)
    writer = io.BufferedWriter(raw)
    if "b" in mode:
        return writer
    # Encoding and line ends are decided by io.open.
    model = real(os.devnull, "w", **{name: value for name, value in options.items() if name != "closefd"})
    with model:
        return io.TextIOWrapper(writer, model.encoding, model.errors, options.get("newline"), model.line_buffering)


def _opener(content: bytes) -> Callable[[Any, int], int]:
    def opener(path: Any, flags: int) -> int:
        with tempfile.TemporaryFile() as copy:
            copy.write(content)
            copy.flush()
            copy.seek(0)
            return os.dup(copy.fileno())

    return opener
