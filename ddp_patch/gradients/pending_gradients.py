"""Gradients that are still this rank's own between backwards, and whoever looks at them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from torch import Tensor

from .accumulation import AccumulationSchedule
from .grad_watch import GradWatch


class HasPendingGradients(Protocol):
    """Parameters whose gradients may have to be averaged."""

    has_pending_gradients: bool
    ids: set[int]
    schedule: AccumulationSchedule

    def make_global(self) -> None:
        """Average them."""


class PendingGradients:
    """Knows whose gradients wait to be averaged, and has that done when somebody looks."""

    def __init__(self) -> None:
        """Start with none."""
        self._watch = GradWatch(self._before_reading)
        self.first: Callable[[], None] | None = None  # called once, when some gradient waits for the first time
        self.waiting: dict[int, HasPendingGradients] = {}
        """Whose gradients wait, by parameter."""

    def make_global(self, sync: HasPendingGradients) -> None:
        """Make the gradients of a replica global."""
        sync.make_global()
        self.note(sync)

    def note(self, sync: HasPendingGradients) -> None:
        """Watch reads of gradients while some are pending."""
        if sync.has_pending_gradients:
            if self.first is not None:
                first, self.first = self.first, None
                first()
            self.waiting.update(dict.fromkeys(sync.ids, sync))
            self._watch.start()
        elif self.waiting:
            for key in sync.ids:
                if self.waiting.get(key) is sync:
                    del self.waiting[key]
            if not self.waiting:
                self._watch.stop()

    def close(self) -> None:
        """Wait for nobody any more, and give ``.grad`` back."""
        self.waiting.clear()
        self._watch.stop()

    def before_zeroing(self, parameters: Iterator[Any]) -> None:
        """Gradients are about to be thrown away: what nobody looked at need not be averaged any more."""
        if not self.waiting:
            return
        ids = {id(parameter) for parameter in parameters}
        # In the order in which they came to wait: a set's is another one on each rank.
        for sync in list({id(sync): sync for sync in self.waiting.values()}.values()):
            if sync.ids <= ids:
                sync.has_pending_gradients = False
                self.note(sync)
            elif not sync.ids.isdisjoint(ids):
                self.make_global(sync)

    def _before_reading(self, tensor: Tensor) -> None:
        sync = self.waiting.get(id(tensor))
        if sync is not None:
            sync.schedule.read()
            self.make_global(sync)
