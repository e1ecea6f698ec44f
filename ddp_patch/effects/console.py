"""The job's console: rank 0 prints, warns, asks and stops in the debugger; the other ranks get the answers."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import TextIO, cast

from ..batch.world import World
from ..job.crash import CrashHook
from .blame import Blame
from .debugger import Debugger
from .prompts import Alone, Prompts
from .rank_zero import RankZero
from .standard_input import Input, StandardInput
from .terminal import Terminal


class Console:
    """Standard input, output and errors, warnings, prompts and debuggers."""

    def __init__(self, world: World, rank_zero: RankZero, crash: CrashHook, alone: Alone) -> None:
        """Prepare; nothing changes before ``begin``.

        Args:
            world: the ranks.
            rank_zero: who acts for all ranks.
            crash: writes what a failing rank says.
            alone: surrounds what rank 0 asks its user.
        """
        self._world = world
        self._rank_zero = rank_zero
        self._crash = crash
        self._terminal: Terminal | None = None
        self._input: Input | None = None
        self.blame = Blame(world.muted.get)
        self.prompts = Prompts(rank_zero, world, alone)
        self.standard_input = StandardInput(self.prompts, rank_zero)
        self.debugger = Debugger(rank_zero, self.prompts)

    def begin(self) -> None:
        """Silence the ranks other than 0, and have all read what rank 0 reads. Every rank comes here together."""
        self.blame.begin()
        self._terminal = Terminal(self._world, self._crash)
        self.standard_input.is_terminal = self._terminal.asks
        if sys.stdin is not None:
            self._input = self.standard_input.file(sys.stdin)
            sys.stdin = cast("TextIO", self._input)
        self.debugger.begin(self._world)

    def speaking(self) -> AbstractContextManager[None]:
        """Let this rank speak for itself."""
        assert self._terminal is not None
        return self._terminal.speaking()

    def stop(self) -> None:
        """Let every rank speak again."""
        if self._terminal is not None:
            self._terminal.stop()
        if self._input is not None and sys.stdin is self._input:
            sys.stdin = self._input.real
