"""Memory without a name, which processes share by its descriptor."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import IO

SHARED = Path("/dev/shm")


def with_room(size: int) -> IO[bytes]:
    """Make a file with room for all its bytes: in shared memory, or on disk where that is small (Docker's 64 MB).

    Written to beyond its room, memory of a file that is merely as long ends the process (SIGBUS).

    Raises:
        OSError: when neither has room.
    """
    if os.access(SHARED, os.W_OK):
        with contextlib.suppress(OSError):
            return _reserved(str(SHARED), size)
    return _reserved(None, size)


def _reserved(folder: str | None, size: int) -> IO[bytes]:
    file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 — given to the caller
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
    except OSError:
        file.close()
        raise
    return file
