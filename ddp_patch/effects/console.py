"""The job's console: rank 0 prints, warns, asks and stops in the debugger; the other ranks get the answers."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import TextIO, cast

from ..batch.world import World
from ..job.crash import CrashHook
from .blame import Blame
from .debugger import Debugger
from .prompts import Alone, Input, Prompts
from .terminal import Terminal
from .turns import Turns


class Console:
    """Standard input, output and errors, warnings, prompts and debuggers."""

    def __init__(self, world: World, turns: Turns, crash: CrashHook, alone: Alone) -> None:
        """Prepare; nothing changes before ``begin``.

        Args:
            world: the ranks.
            turns: of the ranks.
            crash: writes what a failing rank says.
            alone: surrounds what rank 0 asks its user.
        """
        self._world = world
        self._turns = turns
        self._crash = crash
        self._terminal: Terminal | None = None
        self._input: Input | None = None
        self.blame = Blame(world.muted.get)
        self.prompts = Prompts(turns, world, alone)
        self.debugger = Debugger(turns, self.prompts)

    def begin(self) -> None:
        """Silence the ranks other than 0, and have all read what rank 0 reads. Every rank comes here together."""
        self.blame.begin()
        self._terminal = Terminal(self._world, self._crash)
        if sys.stdin is not None:
            self._input = Input(self.prompts, self._turns, sys.stdin, self._terminal.asks)
            sys.stdin = cast("TextIO", self._input)
        self.debugger.begin(self._world)

    def heard(self) -> AbstractContextManager[None]:
        """Let this rank speak for itself."""
        assert self._terminal is not None
        return self._terminal.heard()

    def stop(self) -> None:
        """Let every rank speak again."""
        if self._terminal is not None:
            self._terminal.stop()
        if self._input is not None and sys.stdin is self._input:
            sys.stdin = self._input.real
