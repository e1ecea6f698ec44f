"""Check that the ranks see the same data before they rely on it."""

from __future__ import annotations

import hashlib
from typing import Any

from ..batch.world import World
from ..errors import LockstepError
from ..ledger import script_line


def compare_datasets(world: World, loader: Any) -> None:
    """Compare the lengths of dataset and epoch when a loader is first iterated.

    Raises:
        LockstepError: on every rank, when they differ.
    """
    length = len(loader.dataset) if hasattr(loader.dataset, "__len__") else None
    batches = len(loader.batch_sampler) if hasattr(loader.batch_sampler, "__len__") else None
    given = world.share([length, batches])
    lengths, epochs = [entry[0] for entry in given], [entry[1] for entry in given]
    if len(set(lengths)) > 1:
        raise LockstepError(
            f"{script_line()}: the {type(loader.dataset).__name__} has a length of {_by_rank(lengths)}, so the "
            "ranks would work on different batches. Build it from the same files on every rank, or from a seed: "
            "torch.manual_seed(0)."
        )
    if len(set(epochs)) > 1:
        raise LockstepError(
            f"{script_line()}: the {type(loader.batch_sampler).__name__} has {_by_rank(epochs)} batches, so some ranks "
            "would wait for others that are done. Let its length depend on the data alone, not on the rank."
        )


def compare_indices(world: World, indices: list[Any]) -> None:
    """Compare the first batch that the ranks' samplers drew.

    Raises:
        LockstepError: on every rank, when they differ.
    """
    digest = hashlib.blake2b(repr(indices).encode(), digest_size=16).hexdigest()
    given = world.share([digest, repr(indices[:4])])
    if len({entry[0] for entry in given}) > 1:
        raise LockstepError(
            f"{script_line()}: the ranks' samplers drew different batches, beginning with "
            f"{_by_rank([entry[1] for entry in given])}. Draw the order from torch, numpy or random, whose generators "
            "agree on all ranks, not from the clock or the process id."
        )


def _by_rank(values: list[Any]) -> str:
    return ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(values))
