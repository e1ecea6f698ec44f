"""How calls were carried out in a forward, for a backward that computes a part of it again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from .call_mode import CallMode

Ran = tuple[nn.Module, CallMode]


class Recall:
    """Notes decisions while something may have to be computed again, and gives them again while it is."""

    def __init__(self) -> None:
        """Start with nothing to note."""
        self._noted: list[Ran] | None = None
        self._replay: deque[Ran] | None = None

    @property
    def is_on(self) -> bool:
        """Whether something is computed again."""
        return self._replay is not None

    @contextmanager
    def noting(self, decisions: list[Ran]) -> Iterator[None]:
        """Note into a list what is decided inside."""
        before, self._noted = self._noted, decisions
        try:
            yield
        finally:
            self._noted = before
            if before is not None:
                before += decisions

    @contextmanager
    def giving(self, decisions: list[Ran]) -> Iterator[None]:
        """Decide inside as was noted."""
        before, self._replay = self._replay, deque(decisions)
        try:
            yield
        finally:
            self._replay = before

    def note(self, module: nn.Module, how: CallMode) -> None:
        """Note how a call runs, before what it calls does the same."""
        if self._noted is not None:
            self._noted.append((module, how))

    def of(self, module: nn.Module) -> CallMode:
        """Tell how the call ran that is computed again now. Calls that are not looked at any more are passed over."""
        assert self._replay is not None
        if any(of is module for of, _ in self._replay):
            while True:
                of, how = self._replay.popleft()
                if of is module:
                    return how
        return CallMode.OBSERVED
