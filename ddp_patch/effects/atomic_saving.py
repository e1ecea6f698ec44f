"""Checkpoints: written by rank 0, whole or not at all, and finished on every rank when the call returns."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from ..batch.forms import full_tensor
from ..batch.tensor import BatchTensor
from ..batch.world import World
from ..structure import leaves
from .files import Files
from .ownership import Ownership
from .rank_zero import RankZero
from .scratch import make_scratch, scratch_name, sweep


class AtomicSaves:
    """Writes what a function of the script's library would write."""

    def __init__(self, world: World, rank_zero: RankZero, owners: Ownership, files: Files) -> None:
        """Start with nothing written.

        Args:
            world: the ranks.
            rank_zero: who acts for all ranks.
            owners: tells which files are a rank's own.
            files: of the script.
        """
        self._world = world
        self._rank_zero = rank_zero
        self._owners = owners
        self._files = files

    def save(
        self,
        what: str,
        path: Any,
        obj: Any,
        write: Callable[[Any], None],
        write_directly: Callable[[], None],
        *,
        by_name: bool = False,
        alone: bool = False,
    ) -> None:
        """Write a checkpoint once, atomically.

        Args:
            what: name of the function.
            path: of the checkpoint.
            obj: what is saved; its batches are saved whole.
            write: writes to a path, or to an object with ``write``; called on every rank, since batches that it finds
                on the way are gathered by all of them.
            write_directly: what the function does by itself, for a target that cannot be replaced.
            by_name: ``write`` takes nothing but a path, which it may replace, and is called on rank 0 alone.
            alone: ``write`` is called on rank 0 alone: it finds no batches.

        Raises:
            Exception: on every rank, what it raises on rank 0.
        """
        target = Path(os.fsdecode(path))
        is_own = self._owners.is_temporary(target)
        if self._rank_zero.is_silent() and not is_own:
            return
        if self._rank_zero.is_acting():
            write_directly()
            return
        if not self._rank_zero.in_lockstep() or is_own:
            self._write(target, write, write_directly, by_name)
            return
        if self._rank_zero.note_output is not None:
            self._rank_zero.note_output("saved", obj)
        for _, leaf in leaves(obj):
            if isinstance(leaf, BatchTensor):
                full_tensor(leaf)  # gathered before anything can fail on one rank alone
        self._rank_zero.barrier_call(what, lambda: None, [os.path.abspath(target)])  # nobody reads the old one any more
        with self._rank_zero.alone():
            if self._rank_zero.is_leader:
                self._world.together(lambda: self._write(target, write, write_directly, by_name))
            else:
                self._world.together(lambda: None if by_name or alone else write(Nowhere()))
        self._files.finished(target)

    def save_folder(self, what: str, path: Any, write: Callable[[], Any]) -> Any:
        """Write a checkpoint of several files once.

        Args:
            what: name of the function.
            path: of the folder.
            write: called on rank 0 alone; it finds no batches.

        Returns:
            what ``write`` returns, on every rank.

        Raises:
            Exception: on every rank, what it raises on rank 0.
        """
        is_own = self._owners.is_temporary(path)
        if self._rank_zero.is_silent() and not is_own:
            return None
        if is_own or not self._rank_zero.in_lockstep():
            return write()
        result = self._rank_zero.barrier_call(what, write, [os.path.abspath(os.fsdecode(path))])
        self._files.changed(path)
        return result

    def leaders(self, path: Any) -> Any:
        """What rank 0 calls a path of this rank."""
        return self._files.leaders(path)

    def _write(
        self, target: Path, write: Callable[[Any], None], write_directly: Callable[[], None], by_name: bool
    ) -> None:
        with self._rank_zero.alone():
            write_atomically(target, write, write_directly, by_name=by_name)


class Nowhere:
    """A file object that takes everything and keeps nothing."""

    def write(self, data: Any) -> int:
        """Pretend to write."""
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Nothing to flush."""


def write_atomically(
    path: Path, write: Callable[[Any], None], write_directly: Callable[[], None], *, by_name: bool = False
) -> None:
    """Write beside the target, then rename: a reader and a crash see the old file or the new one, never half of it.

    The new file has no name while it is written (O_TMPFILE), so that a process that is killed leaves nothing behind.

    Args:
        path: the target.
        write: writes to a path, which has the target's name, since torch puts it into the file.
        write_directly: what torch would do, for a target that cannot be renamed to: a pipe, a folder that takes no new
            files, or a path that torch refuses in its own words.
        by_name: ``write`` may replace what is there, so it gets a real file beside the target.
    """
    name = path.name
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    # A file of several names keeps them.
    if (path.exists() and (not path.is_file() or path.stat().st_nlink > 1)) or not path.parent.is_dir():
        write_directly()
        return
    sweep(path.parent.absolute())
    beside = path.parent / scratch_name()
    opened = _opened(beside, named=by_name)
    if opened is None:
        write_directly()
        return
    stream, has_name = opened
    try:
        with stream:
            if by_name:
                write(str(beside))
            else:
                with _called(name, stream) as target:
                    write(target)
            stream.flush()
            if path.exists():
                os.fchmod(stream.fileno(), path.stat().st_mode & 0o7777)
            os.fsync(stream.fileno())
            if not has_name:
                _give_name(stream.fileno(), beside)
                has_name = True
        os.replace(beside, path)
    except BaseException:
        if has_name:
            beside.unlink(missing_ok=True)
        raise
    _keep(path.parent)


def _opened(beside: Path, named: bool) -> tuple[IO[bytes], bool] | None:
    """Open a new file in a folder: without a name, with one where that cannot be, or not at all."""
    if hasattr(os, "O_TMPFILE") and not named:
        with contextlib.suppress(OSError):  # not every file system knows it
            return os.fdopen(os.open(beside.parent, os.O_TMPFILE | os.O_WRONLY, 0o666), "wb"), False
    with contextlib.suppress(OSError):
        return open(beside, "xb"), True
    return None


@contextlib.contextmanager
def _called(name: str, stream: IO[bytes]) -> Iterator[Any]:
    """Give an open file a path that ends in a name, or the file itself where that cannot be."""
    try:
        folder = make_scratch()
        os.symlink(f"/proc/self/fd/{stream.fileno()}", os.path.join(folder, name))
    except OSError:
        yield stream
        return
    try:
        yield os.path.join(folder, name)
    finally:
        os.unlink(os.path.join(folder, name))
        os.rmdir(folder)


def _give_name(descriptor: int, path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        # With a descriptor of the folder, os.link calls linkat(AT_SYMLINK_FOLLOW) (CPython 3.10 to 3.14).
        os.link(f"/proc/self/fd/{descriptor}", path.name, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


def _keep(folder: Path) -> None:
    """Have the new name survive a power cut."""
    with contextlib.suppress(OSError):  # not every file system can
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
