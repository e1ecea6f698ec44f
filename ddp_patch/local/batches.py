"""Which rank reads which part of what the script's own batch samplers and streams give, in the local view."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset, Sampler

from .samplers import Ranks, checksum


class EpochOf:
    """Calls a sampler's ``set_epoch``, unless the script does."""

    def __init__(self, batches: Any) -> None:
        """Begin.

        Args:
            batches: a batch sampler of the script's.
        """
        self.of = weakref.ref(batches)
        self._left = getattr(batches, "epoch", None)  # as it was left
        # One that keeps its epoch under another name cannot be seen to be told.
        self._is_scripts = self._left not in (0, -1) or not callable(getattr(batches, "set_epoch", None))

    def begins(self, epoch: int) -> None:
        """An epoch begins.

        Args:
            epoch: its number, from 0.
        """
        batches = self.of()
        self._is_scripts = self._is_scripts or getattr(batches, "epoch", None) != self._left
        if batches is not None and not self._is_scripts:
            batches.set_epoch(epoch)
            self._left = batches.epoch


class OwnBatches(Sampler[list[Any]]):
    """What a rank reads of the batches that a batch sampler of the script's draws, alike on every rank."""

    def __init__(self, batches: Any, ranks: Ranks, *, is_exact: bool) -> None:
        """Draw nothing yet.

        Args:
            batches: draws lists of indices.
            ranks: that share them.
            is_exact: nothing comes twice, so that some ranks have more.
        """
        self._batches = batches
        self._ranks = ranks
        self.is_exact = is_exact
        self._drawing: Iterator[Any] | None = None

    def draw(self) -> int:
        """Begin to draw the coming epoch, and give a checksum of what it begins with; of a list, of all of it."""
        with self._ranks.shared():
            drawing = iter(self._batches)
            first = [list(batch) for batch in itertools.islice(drawing, 1)]
        self._drawing = itertools.chain(first, drawing)
        return checksum(self._batches if type(self._batches) in (list, tuple) else first)

    def _drawn(self) -> Iterator[Any]:
        if self._drawing is None:
            self.draw()
        drawing, self._drawing = self._drawing, None
        assert drawing is not None
        return drawing


class TakenBatches(OwnBatches):
    """This rank's batches: every Nth."""

    def __init__(self, batches: Any, ranks: Ranks, *, is_exact: bool) -> None:
        """Take turns."""
        super().__init__(batches, ranks, is_exact=is_exact)
        self.lengths: list[list[int]] = []  # of the batches that were drawn, on each rank

    def __iter__(self) -> Iterator[list[Any]]:
        """Give this rank's, as many as every rank has: the first ones come again at the end, unless it drops them."""
        ranks = self._ranks
        first: list[list[Any]] = []
        self.lengths.clear()
        drawn = self._drawn()
        while True:
            with ranks.shared():
                together = [list(batch) for batch in itertools.islice(drawn, ranks.size)]
            first = first or together
            is_left = len(together) < ranks.size and getattr(self._batches, "drop_last", False)
            if self.is_exact and together and not is_left:
                self.lengths.append([len(batch) for batch in together])
            if len(together) < ranks.size:
                if not together or is_left:
                    return
                if self.is_exact:
                    yield from together[ranks.rank : ranks.rank + 1]
                    return
                together += itertools.islice(itertools.cycle(first), ranks.size - len(together))
                yield together[ranks.rank]
                return
            yield together[ranks.rank]

    def __len__(self) -> int:
        """Count this rank's batches."""
        count, size = len(self._batches), self._ranks.size
        return count // size if getattr(self._batches, "drop_last", False) else -(-count // size)


class DealtBatches(OwnBatches):
    """This rank's part of each batch, which is one of all ranks."""

    def __init__(self, batches: Any, ranks: Ranks, *, is_exact: bool) -> None:
        """Deal them."""
        super().__init__(batches, ranks, is_exact=is_exact)
        self.sizes: list[int] = []  # of the batches that were drawn, on all ranks

    def __iter__(self) -> Iterator[list[Any]]:
        """Give the indices of this rank, batch by batch."""
        ranks = self._ranks
        self.sizes.clear()
        drawn = self._drawn()
        while True:
            with ranks.shared():
                batch = next(drawn, None)
            if batch is None:
                return
            batch = list(batch)
            self.sizes.append(len(batch))
            if len(batch) < ranks.size or not self.is_exact:
                missing = -len(batch) % ranks.size
                batch += list(itertools.islice(itertools.cycle(batch), missing))
            yield batch[ranks.rank :: ranks.size]

    def __len__(self) -> int:
        """Count the batches."""
        return len(self._batches)


class DealtStream(IterableDataset[Any]):
    """This rank's rows of a stream: every rank reads all of it, in every worker, and keeps every Nth row."""

    def __init__(self, dataset: IterableDataset[Any], rank: int, size: int, is_padded: bool) -> None:
        """Deal a stream.

        Args:
            dataset: of the script.
            rank: of this process.
            size: the number of ranks.
            is_padded: rows at the end that do not go round are completed by the first ones; otherwise left out.
        """
        attributes = self.__dict__
        attributes["dataset"], attributes["_dealt"] = dataset, (rank, size, is_padded)

    def __getattr__(self, name: str) -> Any:
        """A ``worker_init_fn`` finds what it looks for in the script's dataset."""
        if name == "dataset" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """And writes it there."""
        setattr(self.dataset, name, value)

    def __iter__(self) -> Iterator[Any]:
        """Give this rank's rows."""
        rank, size, is_padded = self._dealt
        first: list[Any] = []
        rows = iter(self.dataset)
        while True:
            together = list(itertools.islice(rows, size))
            if len(first) < size:
                first += together[: size - len(first)]
            if len(together) == size:
                yield together[rank]
                continue
            if together and is_padded:
                together += itertools.islice(itertools.cycle(first), size - len(together))
                yield together[rank]
            return
