"""Samplers draw on ranks what they draw on one process: the same rows, in the same order, batch by batch."""

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import ddp_patch

WEIGHTS = torch.arange(1.0, 24)


class Descending(Sampler):
    """The script's own."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __iter__(self):
        return iter(range(self.count - 1, -1, -1))


def sampler(kind, seeded):
    own = {"generator": torch.Generator().manual_seed(7)} if seeded else {}
    return {
        "weighted": lambda: WeightedRandomSampler(WEIGHTS, 30, **own),
        "weighted without replacement": lambda: WeightedRandomSampler(WEIGHTS, 20, replacement=False, **own),
        "random with replacement": lambda: RandomSampler(WEIGHTS, replacement=True, num_samples=31, **own),
        "subset": lambda: SubsetRandomSampler(range(3, 20), **own),
        "own": lambda: Descending(len(WEIGHTS)),
    }[kind]()


def epochs(kind, seeded, by_batches):
    """Three epochs: the rows of each batch."""
    torch.manual_seed(4)
    rows = sampler(kind, seeded)
    how = (
        {"batch_sampler": BatchSampler(rows, 5, drop_last=False)} if by_batches else {"sampler": rows, "batch_size": 5}
    )
    loader = DataLoader(TensorDataset(torch.arange(len(WEIGHTS))), **how)
    seen = [[x.tolist() for (x,) in loader] for _ in range(3)]
    return seen, torch.rand(()).item(), ddp_patch.is_enabled() and ddp_patch.world_size()


@pytest.mark.quick(
    "weighted-own generator-sampler-2", "subset-own generator-sampler-2", "own-global generator-sampler-2"
)
@pytest.mark.parametrize("nproc", [2, 3])
@pytest.mark.parametrize("by_batches", [False, True], ids=["sampler", "batch sampler"])
@pytest.mark.parametrize("seeded", [False, True], ids=["global generator", "own generator"])
@pytest.mark.parametrize(
    "kind", ["weighted", "weighted without replacement", "random with replacement", "subset", "own"]
)
def test_a_sampler_draws_what_it_draws_on_one_process(ranks, kind, seeded, by_batches, nproc):
    ((wanted, after, _),) = ranks.call(epochs, 1, kind, seeded, by_batches).ok().results
    for seen, drawn, size in ranks.call(epochs, nproc, kind, seeded, by_batches).ok().results:
        assert size == nproc
        assert seen == wanted
        assert drawn == after
    if kind != "own":
        assert wanted[0] != wanted[1]
