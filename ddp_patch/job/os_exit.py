"""Ranks that leave by ``os._exit``, of which no exit function learns: ddp_patch's agent says which one did.

Each has a byte in a file, through memory: it may end where it must not come to the effect that a call of the system is.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from . import last_words

_RUNS, _ENDS = b"1", b"0"


class Mark:
    """What this rank leaves for the agent: that it runs, or ends in a way that it knows of."""

    def __init__(self, rank: int) -> None:
        """Say that it runs, if an agent of ours is there to read it.

        Args:
            rank: of this process.
        """
        self._process = os.getpid()
        self._byte: mmap.mmap | None = None
        folder = os.environ.get(last_words.FOLDER)
        if folder is not None:
            with contextlib.suppress(OSError):  # the agent is gone, and this rank is about to
                path = Path(folder, str(rank))
                path.write_bytes(_RUNS)
                with path.open("r+b") as file:
                    self._byte = mmap.mmap(file.fileno(), len(_RUNS))

    def ends(self) -> None:
        """Say that it ends. Safe to call twice, and in children, which do not."""
        if self._byte is not None and os.getpid() == self._process:
            self._byte[:] = _ENDS


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Surround an agent: a folder for the marks of its ranks."""
    with tempfile.TemporaryDirectory(prefix="ddp_patch_unsaid_") as path:
        os.environ[last_words.FOLDER] = path
        yield Path(path)


def words(folder: Path, rank: int, code: int) -> str:
    """Say how a rank left with a code above 0; nothing where it said so itself, or never came to the others."""
    mark = folder / str(rank)
    if not mark.exists() or mark.read_bytes() != _RUNS:
        return ""
    how = said(folder, rank) or f": it was ended by os._exit({code}), or by code in C"
    return f"ddp_patch: rank {rank} is gone{how}.\n"


def said(folder: Path, rank: int) -> str:
    """Say what a rank has left of why it is gone, after a colon; nothing if that is nothing."""
    with contextlib.suppress(OSError), last_words.of_rank(folder, rank).open("rb") as file:
        last = last_words.read(file.fileno())
        return "" if last is None else f": {last.what}"
    return ""
