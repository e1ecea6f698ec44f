"""From runs to numbers: medians, spread, speed-up, efficiency; and the profile that ``plan`` reads."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..measure.parts import as_run, kept, parts, profile, rows_of
from ..measure.runs import Measured


@dataclass(frozen=True, kw_only=True)
class Point:
    """One number of ranks under one scaling, from one run or several."""

    ranks: int
    grows: bool
    rows: float  # of all ranks, in a step
    step: float  # seconds, the median
    low: float  # of several runs the least and the largest median; of one run the quartiles of its steps
    high: float
    parts: dict[str, float]  # seconds of it, as ``measure.parts.parts`` gives them
    alone: float = 0.0  # seconds that one rank takes for the rows of one batch

    @property
    def throughput(self) -> float:
        """Rows per second."""
        return self.rows / self.step

    @property
    def speed_up(self) -> float:
        """How many times as fast as one rank the rows are done."""
        return self.alone / self.step * (self.ranks if self.grows else 1)

    @property
    def efficiency(self) -> float:
        """1 is N times as fast on N ranks."""
        return self.speed_up / self.ranks


def points(runs: Sequence[Measured]) -> list[Point]:
    """Give a point for each number of ranks and scaling; those whose batch stays come first.

    Args:
        runs: with one rank among them.
    """
    kinds: dict[tuple[bool, int], list[Measured]] = {}
    for its in runs:
        kinds.setdefault((its.spec.grows, its.spec.ranks), []).append(its)
    base = _point(kinds[False, 1], 0.0, 0.0)
    return [_point(kinds[kind], base.step, base.rows) for kind in sorted(kinds)]


def _point(runs: Sequence[Measured], alone: float, rows: float) -> Point:
    spec = runs[0].spec
    medians = [statistics.median(step["total"] for step in its.steps) for its in runs]
    every = [step for its in runs for step in its.steps]
    quarters = statistics.quantiles([step["total"] for step in every], n=4, method="inclusive")
    several = len(runs) > 1
    median = statistics.median(medians)
    return Point(
        ranks=spec.ranks,
        grows=spec.grows,
        rows=(spec.ranks if spec.grows else 1) * rows or rows_of(every),
        step=median,
        low=min(medians) if several else quarters[0],
        high=max(medians) if several else quarters[2],
        parts=parts(every, statistics.mean(its.python for its in runs), median, spec.ranks),
        alone=alone or median,
    )


def as_profile(runs: Sequence[Measured], found: Sequence[Point], devices: int) -> dict[str, Any]:
    """Give what ``python -m ddp_patch plan --profile`` reads.

    Args:
        runs: that were measured.
        found: what ``points`` gave.
        devices: of a host: accelerators, or ranks that were tried.
    """
    base = found[0]
    network = next((its for its in sorted(runs, key=lambda its: its.spec.ranks) if its.network), None)
    alone = next(its for its in runs if its.spec.ranks == base.ranks)
    each = [as_run(its.ranks, its.rows, its.parts) for its in found]
    return profile(alone.facts, base.rows, each, network, devices, kept(alone))
