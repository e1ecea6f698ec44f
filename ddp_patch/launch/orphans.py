"""A rank whose launcher is killed ends with it, instead of training on alone."""

from __future__ import annotations

import ctypes
import os
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
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was killed a moment ago
        os.kill(os.getpid(), signal.SIGKILL)
