"""Which of several jobs that meet at one store this one is: what an earlier one left there is not read."""

from __future__ import annotations

import os


class _Joined:
    count = 0  # jobs of this process so far, which the launcher keeps: on every rank the same


def begin() -> None:
    """Begin another job of this process."""
    _Joined.count += 1


def name() -> str:
    """Name this attempt, alike on every rank: torchrun starts a job anew that failed, Ray a function."""
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"{restart}.{_Joined.count}" if _Joined.count > 1 else restart
