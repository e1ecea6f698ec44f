"""SIGTERM, which launchers send to all ranks once one is gone: it waits until this one has said which, and where.

By Python's faulthandler, whose handlers are in C: they can be set from any thread, and come while the script's thread
is inside torch.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import time
from pathlib import Path

from .forwarded_signals import catches

_WITHIN = 1.0  # seconds


class HeldBack:
    """Holds the signal back for a moment, once."""

    def __init__(self) -> None:
        """Hold nothing."""
        self._memory: int | None = None
        self._until = 0.0

    def begin(self) -> None:
        """Hold it back from now on, unless the script handles it, or has children.

        Those get it as well, and the script would be told that they are gone: a loader's workers, for one.
        """
        if self._until or not hasattr(os, "memfd_create"):
            return
        self._until = time.monotonic() + _WITHIN
        with contextlib.suppress(OSError):  # no more files may be open
            if catches(os.getpid(), signal.SIGTERM) or _has_children():
                return
            self._memory = os.memfd_create("ddp_patch_held_back")
            faulthandler.register(signal.SIGTERM, self._memory, all_threads=False)

    def look(self) -> None:
        """Let it through once its time is over."""
        if self._memory is not None and time.monotonic() > self._until:
            self.end()

    def end(self) -> None:
        """Let it through. Safe to call twice."""
        if self._memory is None:
            return
        memory, self._memory = self._memory, None
        faulthandler.unregister(signal.SIGTERM)
        came = os.pread(memory, 1, 0)
        os.close(memory)
        if came:
            os.kill(os.getpid(), signal.SIGTERM)


def _has_children() -> bool:
    return any(path.read_text() for path in Path("/proc/self/task").glob("*/children"))
