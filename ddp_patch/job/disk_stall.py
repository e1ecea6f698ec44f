"""A rank that waits for a disk which does not answer, where no error comes and no signal ends it: it says so."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from .. import script_thread
from .crash import CrashHook

_PATIENCE = 10.0  # seconds
_WAITS = "D"  # proc(5): in the system, where no signal reaches it


class DiskStall:
    """What the system knows of the script's thread. Linux; elsewhere nothing is known."""

    def __init__(self, crash: CrashHook, who: str, line: Callable[[], str]) -> None:
        """Begin to look.

        Args:
            crash: lets this rank be heard.
            who: names this rank.
            line: names the line of the script that is running.
        """
        self._crash, self._who, self._line = crash, who, line
        self._seen = ""
        self._since = time.monotonic()
        self._is_said = False

    def look(self) -> None:
        """Say it, once for each wait, when the thread has got no further for a while."""
        try:
            fields = Path(f"/proc/self/task/{script_thread.native_id()}/stat").read_bytes().rpartition(b")")[2].split()
            state, computed = fields[0].decode(), b" ".join(fields[11:13]).decode()  # processor time, in ticks
        except (OSError, IndexError):
            return
        now = time.monotonic()
        if state != _WAITS or computed != self._seen:
            self._seen, self._since, self._is_said = computed, now, False
        elif now - self._since > _PATIENCE and not self._is_said:
            self._is_said = True
            with self._crash.speaking():
                sys.stderr.write(
                    f"ddp_patch: {self._who} has waited {now - self._since:.0f} s for a disk or a network file system "
                    f"in {self._line()}. The job goes on when that answers.\n"
                )
                sys.stderr.flush()
