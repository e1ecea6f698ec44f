"""Which of several jobs that meet at one store this one is: what an earlier one left there is not read."""

from __future__ import annotations

import os


class _Joined:
    count = 0  # jobs of this process so far, which the launcher keeps: on every rank the same


def begin() -> None:
    """Begin another job of this process."""
    _Joined.count += 1


def is_agents() -> bool:
    """Tell whether the store is that of torchrun's agent, which stays while ranks come and go."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def name() -> str:
    """Name this attempt, alike on every rank: torchrun starts a job anew that failed, Ray a function."""
    # Each agent of torchrun counts its own restarts, and one that comes later has had none (torch 2.13). A store that
    # is rank 0's own is new each time.
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if is_agents() else "0"
    return f"{restart}.{_Joined.count}" if _Joined.count > 1 else restart
