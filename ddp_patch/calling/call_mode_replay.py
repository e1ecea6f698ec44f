"""How calls were carried out in a forward, for a backward that computes a part of it again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from .call_mode import CallMode

ModuleCallMode = tuple[nn.Module, CallMode, Any]  # and the decision on it, if it ran on rows


class CallModeReplay:
    """Records how modules are called while something may have to be computed again, and replays that while it is."""

    def __init__(self) -> None:
        """Start with nothing to record."""
        self._recorded: list[ModuleCallMode] | None = None
        self._replay: deque[ModuleCallMode] | None = None

    @property
    def is_on(self) -> bool:
        """Whether something is computed again."""
        return self._replay is not None

    @contextmanager
    def recording(self, decisions: list[ModuleCallMode]) -> Iterator[None]:
        """Record into a list what is decided inside."""
        before, self._recorded = self._recorded, decisions
        try:
            yield
        finally:
            self._recorded = before
            if before is not None:
                before += decisions

    @contextmanager
    def replaying(self, decisions: list[ModuleCallMode]) -> Iterator[None]:
        """Decide inside as was recorded."""
        before, self._replay = self._replay, deque(decisions)
        try:
            yield
        finally:
            self._replay = before

    def record(self, module: nn.Module, how: CallMode, decision: Any = None) -> None:
        """Record how a call runs, before what it calls does the same."""
        if self._recorded is not None:
            self._recorded.append((module, how, decision))

    def pass_by(self, module: nn.Module, how: CallMode) -> None:
        """Record how a call runs whatever was recorded of it."""
        if self.is_on:
            self.next_mode_of(module)
        self.record(module, how)

    def next_mode_of(self, module: nn.Module) -> tuple[CallMode, Any]:
        """Tell how the call ran that is computed again now. Calls that are not looked at any more are passed over."""
        assert self._replay is not None
        if any(of is module for of, *_ in self._replay):
            while True:
                of, *how = self._replay.popleft()
                if of is module:
                    return how[0], how[1]
        return CallMode.OBSERVED, None
