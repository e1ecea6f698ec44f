"""Which rows the ranks had together in each batch, and whether these are the rows that one process would have had."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from .difference import Difference
from .observed import Observed


@dataclass
class Epoch:
    """One pass over a loader, by all ranks."""

    about: dict[str, Any]  # rank 0's note of it
    ranks: list[list[list[int]]]  # of each rank, the rows of its batches
    indices: list[list[list[int]]]  # the same, as the dataset that is loaded from counts them
    steps: tuple[int, int]  # optimizer steps taken at its first and last batch
    is_whole: bool  # it was iterated to its end

    @property
    def is_shared(self) -> bool:
        """Whether every rank had the same batches."""
        return all(batches == self.ranks[0] for batches in self.ranks)

    @property
    def trains(self) -> bool:
        """Whether optimizer steps were taken in it."""
        return self.steps[1] > self.steps[0]

    def together(self, which: list[list[list[int]]] | None = None) -> list[list[int]]:
        """Batches of all ranks."""
        by_rank = self.ranks if which is None else which
        if self.is_shared:
            return by_rank[0]
        count = max(map(len, by_rank))
        return [[row for batches in by_rank if k < len(batches) for row in batches[k]] for k in range(count)]


@dataclass
class Order:
    """Of a run of several ranks."""

    loaders: dict[int, list[Epoch]] = field(default_factory=dict)
    padded: int = 0

    def for_loaders(self) -> list[list[list[list[int]]]]:
        """Give what the loaders of another script are to give."""
        count = max(self.loaders, default=-1) + 1
        return [[epoch.together(epoch.indices) for epoch in self.loaders.get(n, [])] for n in range(count)]


def batches_of(ranks: list[Observed]) -> Order:
    """Put together what the ranks noted."""
    order = Order()
    batches: list[dict[tuple[int, int], list[dict[str, Any]]]] = []
    for rank in ranks:
        by_epoch: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
        for note in rank.notes.get("batch", []):
            by_epoch[note["loader"], note["epoch"]].append(note)
        batches.append(by_epoch)
    ended = {(note["loader"], note["epoch"]) for note in ranks[0].notes.get("epoch_end", [])}
    for about in ranks[0].notes.get("epoch", []):
        key = about["loader"], about["epoch"]
        noted = [by_epoch[key] for by_epoch in batches]
        steps = [note["step"] for note in noted[0]] or [about["step"]]
        epoch = Epoch(
            about,
            [[note["rows"] for note in notes] for notes in noted],
            [[note["own"] for note in notes] for notes in noted],
            (steps[0], steps[-1]),
            key in ended,
        )
        order.loaders.setdefault(key[0], []).append(epoch)
        rows = Counter(row for batch in epoch.together() for row in batch)
        order.padded += 0 if epoch.is_shared else sum(rows.values()) - len(rows)
    return order


def judged(old: Observed, ranks: list[Observed], order: Order) -> Iterator[Difference]:
    """Say where the ranks train, or evaluate, on other rows than the old script."""
    alone = {note["loader"]: note for note in old.notes.get("epoch", [])}
    for number, epochs in order.loaders.items():
        about = alone.get(number)
        if about is None:
            continue
        shuffles = about["sampler"] == "RandomSampler"
        if not any(epoch.trains for epoch in epochs):
            if shuffles:  # the old script gets these batches, so that its numbers do not tell
                yield from _twice(epochs[0])
            continue
        yield from _stale(epochs, shuffles)
        first = next((epoch for epoch in epochs if epoch.trains), epochs[0])
        yield from _sizes(first, about)
        if first.is_whole:
            yield from _coverage(first, about, len(ranks))


def _stale(epochs: list[Epoch], shuffles: bool) -> Iterator[Difference]:
    for before, epoch in pairwise(epochs):
        if shuffles and epoch.ranks[0] and before.ranks == epoch.ranks and len(epoch.ranks[0]) > 1:
            said = "this epoch has the order of rows of the one before; alone each has another. Call sampler.set_epoch"
            yield Difference("rows", "order", epoch.steps[0], epoch.about["line"], said)
            return


def _twice(epoch: Epoch) -> Iterator[Difference]:
    rows = Counter(row for batch in epoch.together() for row in batch)
    total = sum(rows.values())
    if not epoch.is_shared and total > len(rows):
        line = epoch.about["sampler_made"] or epoch.about["made"]
        said = f"ranks evaluate {total - len(rows)} of {len(rows)} rows twice, which the script alone does not"
        yield Difference("rows", "coverage", epoch.steps[0], line, said)


def _sizes(epoch: Epoch, about: dict[str, Any]) -> Iterator[Difference]:
    together = epoch.together()
    if together and about["batch"] and about["rows"]:
        wanted = min(about["batch"], about["rows"])
        if len(together[0]) != wanted:
            said = f"a batch of all ranks has {len(together[0])} rows, alone {wanted}, so a step is another one"
            yield Difference("rows", "batch", epoch.steps[0], epoch.about["made"], said)


def _coverage(epoch: Epoch, about: dict[str, Any], size: int) -> Iterator[Difference]:
    rows = Counter(row for batch in epoch.together() for row in batch)
    total = sum(rows.values())
    wanted = about["rows"]
    if wanted is None or epoch.about["rows"] is None:
        return
    left_out = wanted % about["batch"] if about["drops"] and about["batch"] else 0
    line = epoch.about["sampler_made"] if epoch.about["sampler_drops"] else epoch.about["made"]
    if epoch.about["rows"] != wanted:
        said = f"the dataset has {epoch.about['rows']} rows, alone {wanted}"
        yield Difference("rows", "dataset", epoch.steps[0], line, said)
        return
    if len(rows) < wanted - left_out:
        missing = wanted - left_out - len(rows)
        if total >= wanted - left_out and not epoch.is_shared:
            said = f"ranks load the same rows: {total - len(rows)} of {total} are loaded twice, and {missing} never"
        else:
            said = f"an epoch leaves out {missing} of {wanted} rows, which the script alone trains on"
        yield Difference("rows", "coverage", epoch.steps[0], line, said)
    elif not epoch.is_shared and total - len(rows) > size * max(map(len, epoch.ranks[0]), default=1):
        said = f"ranks load the same rows: {total - len(rows)} of {total} are loaded twice"
        yield Difference("rows", "coverage", epoch.steps[0], line, said)
