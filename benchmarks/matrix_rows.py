"""Datasets, samplers and a model for ``matrix_cases.py``: rows that can be told apart.

A row is a function of its number alone, so the gradient is one of which rows came with which weight. Samplers write
down what they drew, since a sampler that nobody seeded has no right answer other than one process's draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
    random_split,
)

BATCH = 4  # rows of a batch, as the script of the one process says
PER_RANK = 3 * BATCH  # rows of the dataset, so that the global batches of every tool are full ones

drawn: list[list[Any]] = []  # what this process's samplers drew, an epoch each: rows, or batches of rows
loaded: list[int] = []  # the rows this process's dataset was asked for


def row(i: int) -> dict[str, Any]:
    """Make row ``i``. The model below is right about the sign of every ``y``, and about nothing else."""
    sign = -1.0 if i % 3 else 1.0
    x = [sign * (1 + i * step % size / size) for step, size in ((7, 11), (5, 13), (3, 17))]
    return {"id": i, "x": torch.tensor(x, dtype=torch.float64), "y": torch.tensor(sign, dtype=torch.float64)}


class Linear(nn.Module):
    """Three weights in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Give a number per row, or per token."""
        return (x * self.weight).sum(-1)


class Rows(Dataset):
    """A map-style dataset."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        """Count the rows."""
        return self.n

    def __getitem__(self, i: int) -> dict[str, Any]:
        """Load a row."""
        loaded.append(int(i))
        return row(int(i))


class Named(Rows):
    """Rows with a text."""

    def __getitem__(self, i: int) -> dict[str, Any]:
        """Load a row and its text."""
        return {**super().__getitem__(i), "name": f"row {i}"}


class Sequences(Rows):
    """Rows of one to five tokens."""

    def __getitem__(self, i: int) -> dict[str, Any]:
        """Load a row's tokens."""
        one = super().__getitem__(i)
        return {**one, "x": torch.stack([one["x"] / (1 + token) for token in range(1 + i * 3 % 5)])}


class Ready(Rows):
    """Items that are batches already, for ``batch_size=None``."""

    def __len__(self) -> int:
        """Count the batches."""
        return self.n // BATCH

    def __getitem__(self, i: int) -> dict[str, Any]:
        """Load a batch."""
        if i >= len(self):
            raise IndexError(i)
        return default_collate([super(Ready, self).__getitem__(BATCH * i + j) for j in range(BATCH)])


class Stream(IterableDataset):
    """The rows, or ready batches of them, one after the other."""

    def __init__(self, items: Dataset) -> None:
        self.items = items

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the items."""
        return (self.items[i] for i in range(len(self.items)))


def pad(items: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Collate to the longest of the batch."""
    x = nn.utils.rnn.pad_sequence([item["x"] for item in items], batch_first=True)
    mask = nn.utils.rnn.pad_sequence([torch.ones(len(item["x"])) for item in items], batch_first=True)
    rest = default_collate([{"id": item["id"], "y": item["y"]} for item in items])
    return {**rest, "x": x, "mask": mask.double()}


def row_loss(out: Tensor, batch: dict[str, Any]) -> Tensor:
    """Mean over rows."""
    return F.mse_loss(out, batch["y"])


def pad_loss(out: Tensor, batch: dict[str, Any]) -> Tensor:
    """Mean over rows of the mean over a row's tokens."""
    squares = (out - batch["y"].unsqueeze(1)) ** 2 * batch["mask"]
    return (squares.sum(1) / batch["mask"].sum(1)).mean()


def token_loss(out: Tensor, batch: dict[str, Any]) -> Tensor:
    """Mean over the tokens of the batch."""
    return ((out - batch["y"].unsqueeze(1)) ** 2 * batch["mask"]).sum() / batch["mask"].sum()


def noted(base: type[Sampler]) -> type[Sampler]:
    """Make one of torch's samplers write down what it draws."""

    class Noted(base):
        def __iter__(self) -> Iterator[int]:
            drawn.append(list(super().__iter__()))
            return iter(drawn[-1])

    return Noted


Weighted, OfSubset, Replaced = noted(WeightedRandomSampler), noted(SubsetRandomSampler), noted(RandomSampler)


class Own(Sampler):
    """A sampler of the author's own."""

    def __init__(self, n: int, permute: Callable[[int], Any]) -> None:
        self.n, self.permute = n, permute

    def __len__(self) -> int:
        """Count the rows."""
        return self.n

    def __iter__(self) -> Iterator[int]:
        """Draw an epoch."""
        drawn.append([int(i) for i in self.permute(self.n)])
        return iter(drawn[-1])


class OwnBatches:
    """A batch sampler of the author's own: every three batches have 3, 5 and 4 rows."""

    def __init__(self, n: int, permute: Callable[[int], Any] = range) -> None:
        self.n, self.permute = n, permute

    def __len__(self) -> int:
        """Count the batches."""
        return self.n // BATCH

    def __iter__(self) -> Iterator[list[int]]:
        """Draw an epoch."""
        rows = iter([int(i) for i in self.permute(self.n)])
        drawn.append([[next(rows) for _ in range((3, 5, 4)[number % 3])] for number in range(len(self))])
        return iter(drawn[-1])


class OwnLoader(DataLoader):
    """A loader of the author's own."""

    def progress(self, step: int) -> str:
        """Say how far the epoch is."""
        return f"{step}/{len(self)}"


def split(n: int) -> Dataset:
    """Keep part of twice the rows, as scripts make their training set."""
    part, _ = random_split(Rows(2 * n), [n, n])
    drawn.append([int(i) for i in part.indices])
    return part
