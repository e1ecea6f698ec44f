"""Standard output, once: the other ranks format everything and write it nowhere.

Formatting still happens on every rank, since it may gather a batch. The file descriptor is redirected, so that output
of C code and of child processes is silenced as well.
"""

from __future__ import annotations

import os
import sys
from typing import TextIO


class Silence:
    """Standard output of a rank other than 0, until ``stop``."""

    def __init__(self) -> None:
        """Redirect descriptor 1, and ``sys.stdout`` where something else took its place."""
        self._stream: TextIO | None = None
        self._replacement: TextIO | None = None
        _flush(sys.stdout)
        self._saved = os.dup(1)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
        if _descriptor(sys.stdout) != 1:  # a notebook, pytest, an editor
            self._stream = sys.stdout
            self._replacement = sys.stdout = open(os.devnull, "w")  # noqa: SIM115 — closed by stop()

    def stop(self) -> None:
        """Let this rank speak again."""
        _flush(sys.stdout)
        os.dup2(self._saved, 1)
        os.close(self._saved)
        if self._replacement is not None:
            if sys.stdout is self._replacement and self._stream is not None:
                sys.stdout = self._stream
            self._replacement.close()


def _descriptor(stream: TextIO | None) -> int | None:
    try:
        return None if stream is None else stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None


def _flush(stream: TextIO | None) -> None:
    if stream is not None and not stream.closed:
        stream.flush()
