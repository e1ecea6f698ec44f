"""Ctrl-Z stops the ranks along with their agent, and ``fg`` has them go on.

They are in sessions of their own, which no terminal signals.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

_SIGNAL = getattr(signal, "SIGTSTP", None)


def stop_ranks_too() -> None:
    """Have Ctrl-Z stop the processes that this one starts, unless whoever started it lets Ctrl-Z pass."""
    if _SIGNAL is not None and signal.getsignal(_SIGNAL) == signal.SIG_DFL:
        signal.signal(_SIGNAL, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    ranks = list(_children())
    _signal(ranks, signal.SIGSTOP)
    try:
        # By the system's own way, which stops no process that nobody could have go on: a container's first, say.
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)  # this agent stops here
        signal.signal(number, _stop)
    finally:  # it may be told to end as it goes on
        _signal(ranks, signal.SIGCONT)


def _signal(ranks: Iterable[int], number: signal.Signals) -> None:
    for rank in ranks:
        with contextlib.suppress(ProcessLookupError):  # it has ended, or has no group of its own yet
            os.killpg(rank, number)


def _children() -> Iterable[int]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            parent = stat.read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                yield int(stat.parent.name)
