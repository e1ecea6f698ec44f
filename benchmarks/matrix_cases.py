"""What ``matrix.py`` measures: loaders as people write them for one process."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matrix_rows import (
    BATCH,
    PER_RANK,
    Named,
    OfSubset,
    Own,
    OwnBatches,
    OwnLoader,
    Ready,
    Replaced,
    Rows,
    Sequences,
    Stream,
    Weighted,
    pad,
    pad_loss,
    row_loss,
    split,
    token_loss,
)
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler, SequentialSampler

Options = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A loader, and how it is fed."""

    name: str
    build: Callable[[int, int], tuple[Dataset, Options]]  # rows, batch size -> dataset, options of DataLoader
    seeds: str = "fixed"  # nothing is drawn; or "seeded": the script seeds; or "unseeded": every process differs
    batch: int = BATCH
    loader: type[DataLoader] = DataLoader
    loss: Callable[[Tensor, dict[str, Any]], Tensor] = row_loss
    own_batches: bool = False  # batch_size does not say how large its batches are


def with_options(**options: Any) -> Callable[[int, int], tuple[Dataset, Options]]:
    """Load plain rows."""
    return lambda n, b: (Rows(n), {"batch_size": b, **options})


def with_sampler(make: Callable[[int], Sampler]) -> Callable[[int, int], tuple[Dataset, Options]]:
    """Load plain rows in a sampler's order."""
    return lambda n, b: (Rows(n), {"batch_size": b, "sampler": make(n)})


def both(name: str, build: Callable[[int, int], tuple[Dataset, Options]], **options: Any) -> list[Case]:
    """Measure it seeded by the script, and not."""
    return [Case(f"{name}, {seeds}", build, seeds, **options) for seeds in ("seeded", "unseeded")]


def uneven(n: int) -> int:
    """Take rows off until neither the batches nor the ranks come out even."""
    return n - 3 if n // PER_RANK % 3 else n - 2


def weights(n: int) -> Tensor:
    """Weigh every row differently."""
    return torch.arange(1.0, n + 1)


def standard_batches(n: int, b: int) -> tuple[Dataset, Options]:
    """Hand over torch's own batch sampler."""
    return Rows(n), {"batch_sampler": BatchSampler(SequentialSampler(range(n)), b, drop_last=False)}


def generator(n: int, b: int) -> tuple[Dataset, Options]:
    """Shuffle by a generator of the script's own."""
    return Rows(n), {"batch_size": b, "shuffle": True, "generator": torch.Generator().manual_seed(7)}


def python_permutation(n: int) -> list[int]:
    """Shuffle by Python's generator."""
    return random.sample(range(n), n)


CASES = [
    Case("sequential", with_options()),
    *both("shuffle", with_options(shuffle=True)),
    Case("shuffle, generator=", generator, "seeded"),
    Case("batch_size=1", with_options(), batch=1),
    Case("two workers", with_options(num_workers=2)),
    Case("uneven tail", lambda n, b: (Rows(uneven(n)), {"batch_size": b})),
    Case("uneven tail, two workers", lambda n, b: (Rows(uneven(n)), {"batch_size": b, "num_workers": 2})),
    Case("uneven tail, drop_last", lambda n, b: (Rows(uneven(n)), {"batch_size": b, "drop_last": True})),
    Case("3 rows: less than a batch", lambda n, b: (Rows(3), {"batch_size": b})),
    Case("1 row: less than the ranks", lambda n, b: (Rows(1), {"batch_size": b})),
    *both("WeightedRandomSampler", with_sampler(lambda n: Weighted(weights(n), n))),
    *both("the same, replacement=False", with_sampler(lambda n: Weighted(weights(n), n, replacement=False))),
    *both("SubsetRandomSampler", with_sampler(lambda n: OfSubset(range(n)))),
    *both("RandomSampler(replacement=True)", with_sampler(lambda n: Replaced(range(n), replacement=True))),
    *both("own sampler, torch's generator", with_sampler(lambda n: Own(n, torch.randperm))),
    *both("own sampler, numpy", with_sampler(lambda n: Own(n, np.random.permutation))),
    *both("own sampler, random", with_sampler(lambda n: Own(n, python_permutation))),
    *both("random_split, no generator", lambda n, b: (split(n), {"batch_size": b, "shuffle": True})),
    Case("batch_sampler=BatchSampler(...)", standard_batches),
    Case("own batch_sampler, 3 to 5 rows", lambda n, b: (Rows(n), {"batch_sampler": OwnBatches(n)}), own_batches=True),
    *both(
        "own batch_sampler, numpy",
        lambda n, b: (Rows(n), {"batch_sampler": OwnBatches(n, np.random.permutation)}),
        own_batches=True,
    ),
    Case("batch_size=None", lambda n, b: (Ready(n), {"batch_size": None}), own_batches=True),
    Case("IterableDataset", lambda n, b: (Stream(Rows(n)), {"batch_size": b})),
    Case("IterableDataset, uneven tail", lambda n, b: (Stream(Rows(uneven(n))), {"batch_size": b})),
    Case("IterableDataset, batch_size=None", lambda n, b: (Stream(Ready(n)), {"batch_size": None}), own_batches=True),
    Case("own collate_fn that pads", lambda n, b: (Sequences(n), {"batch_size": b, "collate_fn": pad}), loss=pad_loss),
    Case(
        "the same, loss per token", lambda n, b: (Sequences(n), {"batch_size": b, "collate_fn": pad}), loss=token_loss
    ),
    Case("strings in the batch", lambda n, b: (Named(n), {"batch_size": b})),
    Case("subclass of DataLoader", with_options(), loader=OwnLoader),
]
