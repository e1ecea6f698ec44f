"""DDP by hand as a careful engineer writes it: whatever a script draws from is drawn alike and dealt to the ranks."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import BatchSampler, Dataset, DistributedSampler, IterableDataset, Sampler


def start(distributed: ModuleType) -> None:
    """Meet, and draw alike from here on: scripts that seed nothing would draw apart."""
    distributed.init_process_group("gloo")
    agreed = [random.getrandbits(32)]
    distributed.broadcast_object_list(agreed)
    torch.manual_seed(agreed[0])
    np.random.seed(agreed[0])
    random.seed(agreed[0])


def dealt(dataset: Dataset, options: dict[str, Any], size: int) -> tuple[Dataset, dict[str, Any]]:
    """Deal the rows of a loader among the ranks.

    Args:
        dataset: of the script.
        options: of its loader.
        size: of a batch of one rank.
    """
    options = dict(options)
    drop_last = options.get("drop_last", False)
    if isinstance(dataset, IterableDataset):
        return EveryNth(dataset, is_padded=not drop_last), options
    batches = options.get("batch_sampler")
    if type(batches) is BatchSampler:
        options["batch_sampler"] = BatchSampler(Drawn(batches.sampler, batches.drop_last), size, batches.drop_last)
    elif batches is not None:
        options["batch_sampler"] = PartOfBatches(batches)
    elif "sampler" in options:
        options["sampler"] = Drawn(options["sampler"], drop_last)
    else:
        shuffle = options.pop("shuffle", False)
        options["sampler"] = DistributedSampler(dataset, shuffle=shuffle, drop_last=drop_last)
    return dataset, options


class Drawn(DistributedSampler):
    """A rank's part of what a sampler draws, alike on every rank."""

    def __init__(self, sampler: Sampler, drop_last: bool) -> None:
        """Deal what has a length."""
        super().__init__(sampler, shuffle=False, drop_last=drop_last)
        self.drawing = sampler

    def __iter__(self) -> Iterator[Any]:
        """Draw all of it, and keep a part."""
        order = list(self.drawing)
        return iter([order[at] for at in super().__iter__()])


class PartOfBatches(Sampler):
    """A rank's part of each batch of a batch sampler; the first rows come again where they do not go round."""

    def __init__(self, batches: Any) -> None:
        """Deal batches."""
        self.batches = batches

    def __iter__(self) -> Iterator[list[Any]]:
        """Give a part of each."""
        rank, size = dist.get_rank(), dist.get_world_size()
        for batch in self.batches:
            rows = list(batch)
            rows += rows[: -len(rows) % size]
            yield rows[rank::size]

    def __len__(self) -> int:
        """Count them."""
        return len(self.batches)


class EveryNth(IterableDataset):
    """A rank's rows of a stream that every rank reads."""

    def __init__(self, dataset: IterableDataset, *, is_padded: bool) -> None:
        """Deal a stream."""
        self.dataset = dataset
        self.is_padded = is_padded

    def __iter__(self) -> Iterator[Any]:
        """Give every Nth; the first ones come again where they do not go round."""
        rank, size = dist.get_rank(), dist.get_world_size()
        rows, first = iter(self.dataset), []
        while together := list(itertools.islice(rows, size)):
            first = first or together
            if len(together) < size and not self.is_padded:
                return
            together += first[: size - len(together)]
            yield together[rank]
