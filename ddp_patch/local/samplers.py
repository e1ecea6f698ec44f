"""Which rank reads which rows in the local view: torch's DistributedSampler, over what the script's sampler draws."""

from __future__ import annotations

import array
import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from torch.utils.data import BatchSampler, RandomSampler, Sampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

T = TypeVar("T")
Surround = Callable[[], AbstractContextManager[None]]


class Ranks:
    """How many ranks there are, and which one this is."""

    def __init__(self, rank: int, size: int, shared: Surround) -> None:
        """Keep it.

        Args:
            rank: of this process.
            size: the number of ranks.
            shared: surrounds what every rank draws alike.
        """
        self.rank = rank
        self.size = size
        self.shared = shared


class Dealt(Sampler[Any]):
    """This rank's part of an epoch of indices."""

    epoch = 0

    def __init__(self, sampler: Sampler[Any], ranks: Ranks, *, drop_last: bool, is_exact: bool) -> None:
        """Deal what a sampler draws; in the orders of ``DistributedSampler`` in place of torch's own samplers.

        Args:
            sampler: of the script's loader.
            ranks: that share the rows.
            drop_last: rows that do not go round are left out; otherwise some are repeated.
            is_exact: no row is left out nor repeated, so that some ranks have one more.
        """
        self._sampler = sampler
        self._ranks = ranks
        self._drop_last = drop_last
        self.is_exact = is_exact
        self.total = 0  # rows of the epoch on all ranks, as far as that is known
        self.has_end = _length(sampler) is not None
        self._drawn: Sequence[Any] | None = None

    def draw(self) -> int:
        """Draw the order of the coming epoch, and give a checksum of it."""
        if not self.has_end:
            return 0
        self._drawn = self._order()
        return checksum(self._drawn)

    def __iter__(self) -> Iterator[Any]:
        """Give the indices of this rank."""
        ranks = self._ranks
        if not self.has_end:
            return _round_by_round(iter(self._sampler), ranks)
        order, self._drawn = self._drawn if self._drawn is not None else self._order(), None
        self.total = len(order)
        if self.is_exact:
            return iter(order[ranks.rank :: ranks.size])
        return iter([order[at] for at in _torchs(order, ranks, shuffle=False, drop_last=self._drop_last)])

    def __len__(self) -> int:
        """Count the indices of this rank."""
        total = _length(self._sampler)
        if total is None:
            raise TypeError(f"{type(self._sampler).__name__} has no length")
        if self.is_exact:
            return len(range(self._ranks.rank, total, self._ranks.size))
        return len(_torchs(range(total), self._ranks, shuffle=False, drop_last=self._drop_last))

    def longest(self) -> int:
        """Count the indices of the rank that has most."""
        return -(-len(self._sampler) // self._ranks.size) if self.is_exact else len(self)  # type: ignore[arg-type]

    def _order(self) -> Sequence[Any]:
        sampler: Any = self._sampler
        if type(sampler) is SequentialSampler:
            return range(len(sampler.data_source))
        if is_plain(sampler):
            # All of its order: of one rank.
            whole: DistributedSampler[Any] = DistributedSampler(sampler.data_source, 1, 0, shuffle=True)
            whole.set_epoch(self.epoch)
            return list(whole)
        with self._ranks.shared():
            return list(sampler)


def checksum(order: Sequence[Any]) -> int:
    """Give a number that tells orders of rows apart."""
    try:
        return zlib.crc32(array.array("q", order).tobytes())
    except (TypeError, OverflowError):  # no numbers
        return zlib.crc32(repr(list(order)).encode())


def _torchs(order: Sequence[Any], ranks: Ranks, *, shuffle: bool, drop_last: bool) -> DistributedSampler[Any]:
    return DistributedSampler(order, ranks.size, ranks.rank, shuffle=shuffle, drop_last=drop_last)  # type: ignore[arg-type]


def is_plain(sampler: Any) -> bool:
    """Tell the sampler that torch makes for ``shuffle=True``."""
    if type(sampler) is not RandomSampler or sampler.replacement:
        return False
    return bool(sampler.num_samples == len(sampler.data_source))


def _round_by_round(drawn: Iterator[T], ranks: Ranks) -> Iterator[T]:
    """Deal what has no end, or one that nobody knows: as many as there are ranks, of which each has one."""
    while True:
        with ranks.shared():
            together = list(itertools.islice(drawn, ranks.size))
        if len(together) < ranks.size:
            return
        yield together[ranks.rank]


def share_of(batch_size: int, size: int) -> int:
    """How many rows of a batch a rank has, as ``batch_size // world_size`` in torch's examples."""
    return max(1, batch_size // size)


def is_torchs(batches: Any) -> bool:
    """Tell a batch sampler whose batches are made of what a sampler draws, one after the other."""
    return type(batches) is BatchSampler


def _length(sampler: Any) -> int | None:
    try:
        return len(sampler)
    except (TypeError, NotImplementedError):
        return None
