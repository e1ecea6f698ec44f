"""A rank whose launcher is killed ends with it, instead of training on alone; and so does an agent."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_launcher() -> None:
    """Have the system end this rank when torch's agent, its parent, is gone.

    The agent ends its ranks when it is asked to stop, and cannot when it is killed. Other launchers have a process of
    their own on every host that sees to it, or are a shell that may end first.
    """
    if not sys.platform.startswith("linux") or "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    _end_with(os.getppid(), signal.SIGKILL)


def end_with_caller() -> None:
    """Have the system tell this agent to end its ranks when the process is gone that called a function on them."""
    caller = os.environ.get("DDP_PATCH_CALLER")
    if caller is not None and sys.platform.startswith("linux"):
        _end_with(int(caller), signal.SIGTERM)


def clear_for_caller(folder: str, stopped: bool) -> None:
    """Remove what the caller would have removed, had it not been killed.

    Args:
        folder: of the call.
        stopped: this agent was told to end, so nobody will read what the ranks left. The system says so when the
            thread ends that started the agent; while others of the caller are ending, it is the parent still.
    """
    caller = os.environ.get("DDP_PATCH_CALLER")
    if caller is not None and (stopped or os.getppid() != int(caller)):
        shutil.rmtree(folder, ignore_errors=True)


def _end_with(parent: int, number: signal.Signals) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:  # it was killed a moment ago
        os.kill(os.getpid(), number)
