"""Collectives of one thread at a time: those of two threads could meet in another order on another rank."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from ..errors import LockstepError
from ..ledger import script_line

# Where Python waits for other threads: nothing goes on in a thread whose innermost frame is there (CPython 3.11).
_PLACES = ("threading.py", "queue.py", "selectors.py", "asyncio", "concurrent", "multiprocessing")
_WAITS = tuple(os.path.join(os.path.dirname(os.__file__), place) for place in _PLACES)
_NAMES = {"wait", "join", "_wait_for_tstate_lock", "_worker", "worker", "get", "select", "poll"}
_PATIENCE = 2.0  # seconds, in which the thread that started this one comes to wait for it


class OneThread:
    """Lets collectives pass from one thread to another only where the first waits."""

    def __init__(self, refuse: Callable[[str], Exception] = LockstepError) -> None:
        """Begin with whichever thread comes first.

        Args:
            refuse: tells the other ranks, and gives what to raise.
        """
        self.refuse = refuse
        self._last = 0  # of the last collective
        self._begun = 0

    def begins(self) -> None:
        """A collective begins in this thread.

        Raises:
            LockstepError: if the thread that had the last one may begin another one meanwhile.
        """
        thread = threading.get_ident()
        if thread != self._last:
            self._take_over(thread)
        self._begun += 1

    def _take_over(self, thread: int) -> None:
        names = {each.ident: each.name for each in threading.enumerate() if type(each).__name__ != "_DummyThread"}
        if thread not in names:
            return  # autograd's own, that works for the one that waits in backward
        end, begun = time.monotonic() + _PATIENCE, self._begun
        while self._last in names and not _waits(sys._current_frames().get(self._last)):
            if self._begun != begun or time.monotonic() > end:
                other = script_line(sys._current_frames().get(self._last))
                raise self.refuse(
                    f"{script_line()}: thread {names[thread]!r} computes with all ranks (a call of the model, a "
                    f"backward, a value of a batch) while thread {names[self._last]!r}, which did so before, goes on "
                    f"at {other}. Their collectives could meet in another order on another rank, and give wrong "
                    "numbers. Let one thread wait for the other: write thread.join() or future.result() before the "
                    "next step, or take what the thread needs out of the batch first: batch.cpu().numpy()."
                )
            time.sleep(0.001)
        self._last = thread


def _waits(frame: FrameType | None) -> bool:
    if frame is None:
        return True
    if frame.f_code.co_name not in _NAMES or not frame.f_code.co_filename.startswith(_WAITS):
        return False
    outer: FrameType | None = frame
    while outer is not None and outer.f_code.co_filename.startswith(_WAITS):
        if outer.f_code.co_name == "start":  # waits until the other thread runs, and then goes on beside it
            return False
        outer = outer.f_back
    return True
