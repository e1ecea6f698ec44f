"""A loader's iterator in the local view: what a rank reads of each batch, and what its rows count."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils.data import DataLoader

from ..batch.world import World
from ..diagnosis.first_batches import length
from ..errors import BatchError
from ..ledger import script_line
from .batches import DealtBatches, TakenBatches
from .models import LocalModels
from .samplers import Dealt, is_torchs
from .weights import Share


class LocalIterator:
    """A loader's iterator: what it yields are this rank's rows."""

    def __init__(
        self,
        iterator: Any,
        shadow: DataLoader[Any],
        world: World,
        models: LocalModels,
        name: str,
        epoch: int,
        surround: Callable[[], AbstractContextManager[None]],
        count: int | None = None,
    ) -> None:
        """Wrap torch's iterator.

        Args:
            iterator: of the shadow.
            shadow: loader that reads this rank's rows.
            world: the ranks.
            models: that are trained on the batches.
            name: of the loader, alike on every rank.
            epoch: of it, from 0.
            surround: what fetches a batch.
            count: of batches, where torch's iterator has none.
        """
        self.iterator = iterator
        self._surround = surround
        self._name = name
        self._epoch = epoch
        self._length = count if length(iterator) is None else longest(shadow)
        self._batches, self._sampler = samplers_of(shadow)
        self._world = world
        self._models = models
        self._count = 0
        self._last: Any = None  # the batch before, kept where this rank may have one less than others
        self._is_uneven = getattr(self._sampler, "is_exact", False) or getattr(self._batches, "is_exact", False)
        self._calls_before = models.collective_calls
        self._normalized_before = models.statistics.no_grad_syncs
        models.weights.begins()

    def __iter__(self) -> LocalIterator:
        """An iterator is its own iterator."""
        return self

    def __len__(self) -> int:
        """Count the batches."""
        return len(self.iterator) if self._length is None else self._length

    def __next__(self) -> Any:
        """Fetch this rank's rows of the next batch."""
        began = self._world.ledger.pace.begin()
        fetching = self._world.fetching.set(True)
        try:
            with self._surround():
                data = next(self.iterator)
        except StopIteration:
            if self._is_uneven and not isinstance(self._batches, DealtBatches):  # of which every rank has as many
                share = self._share(self._count + 1)
                if share is not None:
                    self._see_that_none_waits(share)
                    if self._has_none_where_others_have(share):
                        return self._last
            self._models.weights.ended(self)
            raise
        finally:
            self._world.fetching.reset(fetching)
            self._world.ledger.pace.end("loading", began)
        self._count += 1
        self._world.ledger.epochs = None if self._length is None else self._epoch + self._count / self._length
        self._world.ledger.loader = self._name
        share = self._share(self._count) if self._is_uneven else None
        if share is not None:
            self._see_that_none_waits(share)
        self._models.weights.fetched(self, share)
        self._last = data if self._is_uneven else None
        return data

    def _share(self, number: int) -> Share | None:
        """Give this rank's rows of a batch, where ranks have not equally many."""
        size, rank = self._world.size, self._world.rank
        if isinstance(self._batches, TakenBatches):
            lengths = self._batches.lengths[number - 1] if number <= len(self._batches.lengths) else []
            counts = (*lengths, *[0] * (size - len(lengths)))
            return None if len(set(counts)) == 1 else Share(rank, counts)
        if isinstance(self._batches, DealtBatches):
            rows = self._batches.sizes[number - 1]
        else:
            share: int = getattr(self._batches, "batch_size", 1)  # of batch_size=None what the dataset has is a row
            total: int = self._sampler.total
            rows = max(0, min(total - (number - 1) * share * size, share * size))
        return Share.of(rows, rank, size)

    def _see_that_none_waits(self, share: Share) -> None:
        """See that no rank is without a row where BatchNorm takes the statistics of all, without gradients.

        Raises:
            BatchError: on every rank, when one is.
        """
        if all(share.counts) or isinstance(self._batches, DealtBatches) or torch.is_grad_enabled():
            return
        if self._models.statistics.no_grad_syncs > self._normalized_before:
            raise BatchError(
                f"{script_line()}: the last batch of {self._name} has fewer rows than there are ranks: "
                f"{[*share.counts]}, by rank, and BatchNorm takes the statistics of all ranks' rows without gradients, "
                "where a rank without a row would have the others wait. Write tail='pad'."
            ) from None

    def _has_none_where_others_have(self, share: Share) -> bool:
        """Tell whether other ranks have models under DDP see one more batch, in which this one has no row."""
        was_called = self._models.collective_calls > self._calls_before and torch.is_grad_enabled()
        if not was_called or self._last is None:
            return False
        if share.local_rows > 0:
            return False
        self._count += 1
        self._is_uneven = False
        self._models.weights.fetched(self, share)
        self._world.ledger.note(
            "the last batch has fewer rows than there are ranks: those without one repeat their batch before, "
            "whose gradients count nothing; what the script adds up of it does"
        )
        return True

    def __getattr__(self, name: str) -> Any:
        """Pass everything else on to torch's iterator."""
        return getattr(self.iterator, name)


def samplers_of(shadow: DataLoader[Any]) -> tuple[Any, Any]:
    """Give a loader's batch sampler, None where its dataset makes the batches, and what draws the rows.

    A batch sampler may stand in the place of the sampler, with ``batch_size=None``: torch's way to read many rows at
    once.
    """
    batches = shadow.sampler if shadow.batch_sampler is None and is_torchs(shadow.sampler) else shadow.batch_sampler
    return batches, getattr(batches, "sampler", shadow.sampler)


def longest(shadow: DataLoader[Any]) -> int:
    """Count the batches of the rank that has most: what scripts step, accumulate and schedule by."""
    batches, sampler = samplers_of(shadow)
    if batches is None:
        return sampler.longest() if isinstance(sampler, Dealt) else len(sampler)
    if isinstance(sampler, Dealt) and sampler.is_exact:
        share: int = batches.batch_size
        return -(-sampler.longest() // share)
    return len(batches)
