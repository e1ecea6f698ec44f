"""All that a profile says, put together from what the ranks noted."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..measure.facts import on_accelerator
from ..measure.parts import backwards_of, by_device, full, kept, parts, rows_per_step
from ..measure.runs import Measured, noted_of
from .timeline import Collective, Timeline

_FEW = 4096  # bytes; what is smaller is no bucket of gradients, but where all gradients are


@dataclass(frozen=True)
class Rank:
    """One rank. Seconds of a step."""

    step: float  # the median
    parts: dict[str, float]  # of ``measure.parts.parts``
    hidden: float  # collectives beside computing, in the traced steps
    lines: dict[tuple[str, str], float]  # what was waited for in the traced steps, by kind and line of the script
    timeline: Timeline


@dataclass(frozen=True)
class Bucket:
    """Gradients that travel together. Seconds, the means over ranks and steps."""

    bytes: int
    begin: float  # since the step began
    seconds: float
    hidden: float


@dataclass(frozen=True, kw_only=True)
class Found:
    """A profile."""

    name: str  # of the script
    rows: float  # of all ranks, in a step
    facts: dict[str, Any]
    ledger: dict[str, Any]  # of ddp_patch's own books
    ranks: list[Rank]
    backwards: int = 1  # of a step, one for each of its batches
    network: dict[str, float] = field(default_factory=dict)  # of ``Measured``
    buckets: list[Bucket] = field(default_factory=list)  # in their order
    meetings: dict[str, float] = field(default_factory=dict)  # collectives of a step that are no buckets
    layers: dict[str, tuple[float, float]] = field(default_factory=dict)  # seconds of forward and backward, on rank 0
    busy: float = 0.0  # part of the cores that other programs had meanwhile
    kept: tuple[float, float] | None = None  # bytes that a rank keeps for its backward, and its rows

    @property
    def step(self) -> float:
        """Seconds of a step, the mean over the ranks."""
        return statistics.mean(rank.step for rank in self.ranks)

    def mean(self, part: str) -> float:
        """Give the mean of a part over the ranks."""
        return statistics.mean(rank.parts[part] for rank in self.ranks)


def found(run: Measured, timelines: Sequence[Timeline], busy: float = 0.0) -> Found:
    """Put it together.

    Args:
        run: that was measured.
        timelines: of its ranks.
        busy: part of the cores that other programs had meanwhile.
    """
    size = run.spec.ranks
    of_device = on_accelerator(run.facts)
    ranks = [_rank(noted, timeline, size, of_device) for noted, timeline in zip(run.by_rank, timelines, strict=True)]
    ledger = noted_of(run.by_rank[0], "told")[0]
    least = min(run.facts.get("gradient_bytes", _FEW), _FEW)
    layers = {name: (its[0] / 1e6, its[1] / 1e6) for name, its in timelines[0].layers.items()}
    return Found(
        name=run.spec.script.name,
        rows=rows_per_step(run.steps),
        backwards=backwards_of(run.steps),
        facts=run.facts,
        ledger=ledger,
        ranks=ranks,
        network=run.network,
        buckets=_buckets(timelines, least),
        meetings=_meetings(timelines, least),
        layers=layers,
        busy=busy,
        kept=kept(run),
    )


def _rank(noted: list[dict[str, Any]], timeline: Timeline, ranks: int, of_device: bool) -> Rank:
    steps = full(noted_of(noted, "took"))
    median = statistics.median(step["total"] for step in steps)
    python = noted_of(noted, "python")
    lines: dict[tuple[str, str], float] = defaultdict(float)
    count = max(len(timeline.steps), 1)
    for step in timeline.steps:
        for kind, begin, end, line in step.spans:
            lines[kind, line] += (end - begin) / 1e6 / count
    hidden = sum(step.hidden for step in timeline.steps) / 1e6 / count
    overhead = (python and python[0]["seconds"]) or 0.0
    its = parts(steps, overhead, median, ranks)
    if of_device:
        its = by_device(its, sum(step.exposed for step in timeline.steps) / 1e6 / count)
    return Rank(median, its, hidden, dict(lines), timeline)


def _buckets(timelines: Sequence[Timeline], least: int) -> list[Bucket]:
    """Give the all-reduces of a step that are large enough, by their order in it."""
    every = [step for timeline in timelines for step in timeline.steps]
    steps = [[its for its in step.collectives if _is_bucket(its, least)] for step in every]
    usual = statistics.mode(len(its) for its in steps) if steps else 0
    of_order = zip(*(its for its in steps if len(its) == usual), strict=True) if usual else ()
    return [
        Bucket(
            bytes=each[0].bytes,
            begin=statistics.mean(its.begin for its in each) / 1e6,
            seconds=statistics.mean(its.end - its.begin for its in each) / 1e6,
            hidden=statistics.mean(its.hidden for its in each) / 1e6,
        )
        for each in of_order
    ]


def _meetings(timelines: Sequence[Timeline], least: int) -> dict[str, float]:
    steps = [step for timeline in timelines for step in timeline.steps]
    names = Counter(its.name for step in steps for its in step.collectives if not _is_bucket(its, least))
    return {name: count / len(steps) for name, count in names.most_common()}


def _is_bucket(its: Collective, least: int) -> bool:
    return "reduce" in its.name.lower() and its.bytes >= least
