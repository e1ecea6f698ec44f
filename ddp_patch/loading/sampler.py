"""What a loader fetches is drawn on every rank, in step with what one process would have drawn by then."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any

from ..batch.layout import Layout
from ..batch.world import World
from ..diagnosis.first_batches import FirstBatches
from .generators import FetchingGenerators


class Drawn:
    """A sampler of the script's, drawn as far ahead as one process would draw it for its workers."""

    def __init__(self, sampler: Any, world: World, ahead: int = 0) -> None:
        """Wrap a sampler, or a batch sampler.

        Args:
            sampler: yields what to fetch.
            world: the ranks, which must draw alike.
            ahead: how many items one process would have drawn more than are asked for here.
        """
        self.compared: FirstBatches | None = None  # with the other ranks
        self.world = world
        self.begins = True  # an epoch when it is asked for an iterator
        self.lengths: deque[int | None] | None = None  # of the items under way, oldest first, for who asks for them
        self._sampler = sampler
        self._ahead = ahead
        self._drawing: Iterator[Any] = iter(())
        self._drawn: deque[Any] = deque()
        self._last: Any = None  # the item that was given last

    def again(self) -> Iterator[Any]:
        """Give the items from the last one on, drawing no further ahead than they are asked for."""
        self._ahead = 0
        return itertools.chain([self._last], self._items())

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch."""
        if self.lengths is not None:
            self.lengths.clear()
        if self.begins:
            self.begin()
        return self._items()

    def begin(self) -> None:
        """Ask the sampler for an iterator, which may draw already."""
        self._drawn.clear()
        with self.world.in_step():
            self._drawing = iter(self._sampler)

    def __len__(self) -> int:
        """Count the items."""
        return len(self._sampler)

    def draw_ahead(self, further: int = 0) -> None:
        """Draw now what one process would draw when its workers are started."""
        while len(self._drawn) < self._ahead + further:
            with self.world.in_step():  # whoever fetches, all ranks draw
                item = next(self._drawing, self)
            if self.compared is not None:
                self.compared.drawn("nothing" if item is self else item, is_last=item is self)
            if item is self:
                return
            self._drawn.append(item)

    def _items(self) -> Iterator[Any]:
        while True:
            self.draw_ahead(1)
            if not self._drawn:
                return
            item = self._last = self._drawn.popleft()
            if self.lengths is not None:
                self.lengths.append(len(item) if isinstance(item, (list, tuple)) else None)
            yield item


class DealtBatches(Drawn):
    """A batch sampler that draws each global batch and hands over this rank's part of it."""

    def __init__(self, batches: Any, world: World, ahead: int, generators: FetchingGenerators | None) -> None:
        """Wrap the script's batch sampler.

        Args:
            batches: yields the indices of global batches.
            world: the ranks to deal to.
            ahead: as for every sampler.
            generators: entered when this process is about to fetch rows of its own; None where its workers do.
        """
        super().__init__(batches, world, ahead)
        self.sizes: deque[tuple[int, Layout | None]] = deque()  # of the batches under way, oldest first
        self.generators = generators

    def __iter__(self) -> Iterator[list[Any]]:
        """Begin an epoch."""
        self.sizes.clear()
        return super().__iter__()

    def _items(self) -> Iterator[list[Any]]:
        for drawn in super()._items():
            indices = list(drawn)
            layout = Layout.deal(len(indices), 0, self.world.size)
            self.sizes.append((len(indices), layout))
            if layout is None:
                yield indices
                continue
            start, length = layout.span(self.world.rank)
            if self.generators is not None:
                self.generators.enter()  # left once they are fetched
            yield indices[start : start + length]
