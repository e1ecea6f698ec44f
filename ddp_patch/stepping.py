"""Which steps of optimizers run: one inside another, as of an optimizer that wraps another, is a part of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any


class Stepping:
    """Tells a step of the script's from those that it is made of."""

    def __init__(self) -> None:
        """Begin outside of any."""
        self._running: list[tuple[Any, FrameType]] = []  # the optimizer, and who called its hooks

    def begins(self, optimizer: Any) -> bool:
        """A step begins. Called by torch's hook itself; tell whether it is inside of no other."""
        caller = sys._getframe(2)
        if self._running:
            self._drop_raised(caller)
        self._running.append((optimizer, caller))
        return len(self._running) == 1

    def ended(self, optimizer: Any) -> bool:
        """A step has ended; tell whether it was inside of no other."""
        # Steps inside of it that raised, to somebody who caught the error, are over as well.
        while self._running and self._running.pop()[0] is not optimizer:
            pass
        return not self._running

    def around(self, optimizer: Any) -> Sequence[Any]:
        """Give the optimizers whose steps a step is inside of, which is the last one of its optimizer's."""
        running = [other for other, _ in self._running]
        while running and running.pop() is not optimizer:
            pass
        return running

    def _drop_raised(self, frame: FrameType | None) -> None:
        """Forget steps that raised: torch calls no hook then, and their frames are gone from the stack."""
        on_stack = set()
        while frame is not None:
            on_stack.add(frame)
            frame = frame.f_back
        self._running = [(optimizer, its) for optimizer, its in self._running if its in on_stack]
