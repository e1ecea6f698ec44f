"""DataLoader workers: divided among the ranks of a host, drawing from generators of their own."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from ..calling.per_rank_generators import rank_seed
from ..generators import same, same_numbers, states
from .generators import generators_in, reseed_for_rank


class RankSeeds:
    """A worker_init_fn that moves a worker's generators to the rank's own, then calls the script's own."""

    def __init__(self, rank: int, then: Callable[[int], None] | None) -> None:
        """Keep what spawned workers can unpickle."""
        self.rank = rank
        self.then = then

    def __call__(self, worker_id: int) -> None:
        """Seed torch, random and numpy, which torch seeded alike on every rank, and what the dataset draws from."""
        _seed(rank_seed(torch.initial_seed(), self.rank))
        if self.then is not None:
            self._begin(worker_id)
        worker = torch.utils.data.get_worker_info()
        if self.rank and worker is not None:
            for generator in generators_in(worker.dataset):
                reseed_for_rank(generator, self.rank)

    def _begin(self, worker_id: int) -> None:
        assert self.then is not None
        before = states()
        self.then(worker_id)
        after = states()
        if self.rank and not same(before, after):
            # By the number of a worker, most often, of which every rank has one: theirs are other rows.
            if not torch.equal(before[0], after[0]):
                torch.manual_seed(rank_seed(torch.initial_seed(), self.rank))
            if before[1] != after[1]:
                random.seed(rank_seed(random.getrandbits(63), self.rank))
            numpy = sys.modules.get("numpy")
            if numpy and not same_numbers(before[2], after[2]):
                numpy.random.seed(rank_seed(int(numpy.random.randint(1 << 31)), self.rank) % (1 << 32))


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy:
        numpy.random.seed(seed % (1 << 32))


def drawn_ahead(loader: DataLoader[Any]) -> int:
    """How many batches a loader draws before its first one is asked for."""
    return loader.num_workers * (loader.prefetch_factor or 0)


def divided(loader: DataLoader[Any], rank: int, ranks_per_host: int) -> dict[str, Any]:
    """Attributes of a loader that fetches one rank's rows with its share of the workers."""
    if loader.num_workers == 0:
        return {}
    workers = -(-loader.num_workers // ranks_per_host)
    return {
        "num_workers": workers,
        # In all no further ahead than one process, whose sampler may draw from the script's generators.
        "prefetch_factor": drawn_ahead(loader) // workers,
        "worker_init_fn": RankSeeds(rank, loader.worker_init_fn),
    }
