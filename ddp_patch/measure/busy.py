"""Whether other programs had a part of this host's cores while something was measured."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_COUNTERS = Path("/proc/stat")
_MUCH = 0.1  # of the cores


@dataclass(frozen=True)
class Cores:
    """The clock of this host's cores, from when it is made."""

    began: float
    others: float | None  # core-seconds of other programs since the host was started; None where it is not Linux

    @classmethod
    def look(cls) -> Cores:
        """Begin to look."""
        return cls(time.monotonic(), _others())

    def share(self) -> float:
        """Give the part of all cores that others have had since then; 0 where that cannot be known."""
        now = _others()
        if self.others is None or now is None:
            return 0.0
        seconds = (time.monotonic() - self.began) * (os.cpu_count() or 1)
        return min(max((now - self.others) / seconds, 0.0), 1.0)


def said(share: float) -> str:
    """Give the sentence that says so; nothing where it is not much."""
    if share <= _MUCH:
        return ""
    return f"Other programs had {share:.0%} of the cores meanwhile: measure when they have not."


def _others() -> float | None:
    """Core-seconds of all programs, without this one and those it has started that have ended."""
    if not _COUNTERS.exists():
        return None
    user, nice, system, _idle, _wait, interrupts, soft, steal, *_ = map(int, _COUNTERS.read_text().split()[1:11])
    return (user + nice + system + interrupts + soft + steal) / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])
