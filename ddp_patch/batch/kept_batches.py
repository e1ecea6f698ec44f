"""Batches that outlive the forward which made them: its outputs, what it leaves in attributes, and what it hides."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..structure import leaves


class KeptBatches:
    """Those of one forward that is observed."""

    def __init__(self) -> None:
        """Start with none."""
        self._made: dict[int, weakref.ref[Any]] = {}
        self._of_torch: set[int] = set()
        self._made_again: set[int] = set()
        self.is_again = False  # what is made now is made once more, in backward

    def note_made(self, batch: Any) -> None:
        """Note a batch that the forward made."""
        self._made[id(batch)] = weakref.ref(batch)
        (self._made_again.add if self.is_again else self._made_again.discard)(id(batch))

    def is_made(self, batch: Any) -> bool:
        """Tell whether the forward made a batch."""
        return id(batch) in self._made

    def allow(self, kept: Any) -> None:
        """Let these outlive the forward: torch keeps them, to compute with them again."""
        self._of_torch.update(id(leaf) for _, leaf in leaves(kept))

    @contextmanager
    def made_again(self) -> Iterator[None]:
        """Surround what backward computes once more, where nobody would make batches of the rows that it leaves."""
        before, self.is_again = self.is_again, True
        try:
            yield
        finally:
            self.is_again = before

    def alive(self) -> set[int]:
        """Give the identities of those that are still held, and that rows leave as they do."""
        return {key for key, ref in self._made.items() if ref() is not None} - self._made_again

    def are_hidden(self, outputs: Any, arguments: list[Any], uses: list[int]) -> bool:
        """Tell whether something else than the outputs still holds some.

        Args:
            outputs: of the forward.
            arguments: batches among its arguments.
            uses: ``sys.getrefcount`` of each before the call, asked in the same way.
        """
        ids = {id(leaf) for _, leaf in leaves(outputs)} | self._of_torch
        made = (batch for ref in self._made.values() if (batch := ref()) is not None)
        if any(id(batch) not in ids for batch in made):
            return True
        now = [*map(sys.getrefcount, arguments)]  # by no loop, which would hold them
        return any(its > uses[at] and id(arguments[at]) not in ids for at, its in enumerate(now))
