"""Do something between two lines of the script, as Python does when a signal comes, and not inside a library's call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from ..ledger import is_of_script


def at_next_line(action: Callable[[FrameType], Any]) -> None:
    """Call a function with the script's frame, before the next line of the script that this thread comes to.

    What it raises is raised there. A debugger that traces the script goes on afterwards.
    """
    current = sys._getframe(1)
    frame = of_script(current)
    if frame is None:  # nothing of the script waits for what this thread does
        action(current)
    else:
        _Stop(action).set_in(frame)


class _Stop:
    """A trace function that acts once."""

    def __init__(self, action: Callable[[FrameType], Any]) -> None:
        self._action = action
        self._is_traced = sys.gettrace() is not None
        self._local: Any = None

    def set_in(self, frame: FrameType) -> None:
        self._local = frame.f_trace
        frame.f_trace = self._traced
        if not self._is_traced:
            sys.settrace(_nowhere_else)

    def _traced(self, frame: FrameType, event: str, argument: Any) -> Any:
        caller = of_script(frame.f_back)
        if event == "exception":
            return self._traced
        frame.f_trace = self._local
        if event == "return" and caller is not None:
            self.set_in(caller)
            return None
        if not self._is_traced:
            sys.settrace(None)
        self._action(frame)
        return self._local


def of_script(frame: FrameType | None) -> FrameType | None:
    """Give the innermost frame of the script."""
    while frame is not None and not is_of_script(frame):
        frame = frame.f_back
    return frame


def _nowhere_else(frame: FrameType, event: str, argument: Any) -> None:
    """Trace no frame that begins meanwhile."""
