"""From runs to numbers: medians, spread, speed-up, efficiency; and the profile that ``plan`` reads."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..measure.network import link
from ..measure.runs import Measured
from ..plan.profile import FORMAT, VERSION

PARTS = ("loading", "waiting", "effects", "optimizer")


@dataclass(frozen=True, kw_only=True)
class Point:
    """One number of ranks under one scaling, from one run or several."""

    ranks: int
    grows: bool
    rows: float  # of all ranks, in a step
    step: float  # seconds, the median
    low: float  # of several runs the least and the largest median; of one run the quartiles of its steps
    high: float
    parts: dict[str, float]  # seconds of the middle half of the steps, by ``PARTS``, "python" and "computing"
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
        rows=(spec.ranks if spec.grows else 1) * rows or _rows(every),
        step=median,
        low=min(medians) if several else quarters[0],
        high=max(medians) if several else quarters[2],
        parts=parts(every, statistics.mean(its.python for its in runs), median),
        alone=alone or median,
    )


def _rows(steps: Sequence[dict[str, float]]) -> float:
    """Rows of most steps; the last batch of an epoch may have fewer. A step whose rows nobody knows counts as one."""
    return statistics.mode(step["rows"] for step in steps) or 1.0


def parts(steps: Sequence[dict[str, float]], python: float, median: float) -> dict[str, float]:
    """Give what a step goes to, by the middle half of the steps, as parts of their median.

    Args:
        steps: each with its ``total``, and its seconds by ``PARTS``.
        python: seconds of ddp_patch's own Python in each.
        median: seconds of a step.
    """
    quarter = len(steps) // 4
    middle = sorted(steps, key=lambda step: step["total"])[quarter : len(steps) - quarter]
    total = statistics.mean(step["total"] for step in middle)
    found = {name: statistics.mean(step[name] for step in middle) / total * median for name in PARTS}
    left = max(median - sum(found.values()), 0.0)
    found["python"] = min(python, 0.9 * left)  # profiled in other steps than these
    found["computing"] = left - found["python"]
    if not python:  # on one rank, where backwards wait for nobody
        found["backward"] = min(statistics.mean(step["backward"] for step in middle) / total * median, left)
    return found


def as_profile(runs: Sequence[Measured], found: Sequence[Point], devices: int) -> dict[str, Any]:
    """Give what ``python -m ddp_patch plan --profile`` reads.

    Args:
        runs: that were measured.
        found: what ``points`` gave.
        devices: of a host: accelerators, or ranks that were tried.
    """
    base = found[0]
    network = next((its for its in sorted(runs, key=lambda its: its.spec.ranks) if its.network), None)
    profile: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        **next(its.facts for its in runs if its.spec.ranks == base.ranks),
        "batch_rows": base.rows,
        "runs": [_as_run(point) for point in found],
    }
    if network is not None:
        profile["network"] = {
            "devices_per_host": devices,
            "within": link(network.spec.ranks, network.network["few"], network.network["many"]),
        }
    return profile


def _as_run(point: Point) -> dict[str, Any]:
    its = point.parts
    named = {f"{name}_seconds": its[name] for name in ("loading", "optimizer", "python", "effects")}
    backward = {"backward_seconds": its["backward"]} if point.ranks == 1 and its.get("backward") else {}
    return {
        "ranks": point.ranks,
        "rows": point.rows,
        "step_seconds": point.step,
        "compute_seconds": its["computing"],
        **backward,
        **named,
        "exposed_communication_seconds": its["waiting"],
    }
