"""From runs to numbers: medians, spread, speed-up, efficiency; and the profile that ``plan`` reads."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..measure import session_facts
from ..measure.facts import on_accelerator
from ..measure.parts import as_run, backwards_of, by_device, full, kept, parts, profile, rows_per_step
from ..measure.runs import Measured, Spec, noted_of

_TURNED = {
    True: 'The batch grew also where it was to stay: the script or DDP_PATCH_BATCH says batch="per_device", or the '
    "script multiplies its batch by the number of devices. Leave that out to see what a batch that stays takes.",
    False: 'The batch stayed also where it was to grow, as the script says batch="global", or has no DataLoader, whose '
    'batches alone grow. Write ddp_patch.enable(batch="per_device"), or enable() alone, to see what a batch that grows '
    "takes.",
}


@dataclass(frozen=True, kw_only=True)
class MeasuredScale:
    """One number of ranks under one scaling, from one run or several."""

    ranks: int
    grows: bool  # by the rows that were counted
    rows: float  # of all ranks, in a step
    backwards: int  # of a step, one for each of its batches
    step: float  # seconds, the median
    low: float  # of several runs the least and the largest median; of one run the quartiles of its steps
    high: float
    parts: dict[str, float]  # seconds of it, as ``measure.parts.parts`` gives them
    alone: float = 0.0  # seconds of one rank for each row
    turned: bool = False  # here are runs whose batch was to stay, and grew, or the other way round

    @property
    def throughput(self) -> float:
        """Rows per second."""
        return self.rows / self.step

    @property
    def speed_up(self) -> float:
        """How many times as fast as one rank the rows are done."""
        return self.alone * self.rows / self.step

    @property
    def efficiency(self) -> float:
        """1 is N times as fast on N ranks."""
        return self.speed_up / self.ranks


def points(runs: Sequence[Measured]) -> list[MeasuredScale]:
    """Give a point for each number of ranks and scaling; those whose batch stays come first.

    Args:
        runs: with one rank among them.
    """
    kinds: dict[tuple[bool, int], list[Measured]] = {}
    for run in runs:
        kinds.setdefault((run.spec.grows, run.spec.ranks), []).append(run)
    base = _point(kinds[False, 1], None)
    found: dict[tuple[bool, int], MeasuredScale] = {}
    for kind in sorted(kinds):
        its = _point(kinds[kind], base)
        there = found.get((its.grows, its.ranks))
        if there is not None:  # of both the one that was meant so
            its = dataclasses.replace(its if there.turned else there, turned=True)
        found[its.grows, its.ranks] = its
    return [found[place] for place in sorted(found)]


def turned(found: Sequence[MeasuredScale]) -> str:
    """Say that batches grew or stayed where they were not to, and what to write; nothing where none did."""
    ways = {its.grows for its in found if its.turned}
    return " ".join(words for grows, words in _TURNED.items() if grows in ways)


def apart(runs: Sequence[Measured]) -> str:
    """Say where runs are not what their number of ranks makes one think; nothing where they are."""
    said = (session_facts.apart(its, run.spec.ranks) for run in runs for its in noted_of(run.by_rank[0], "told"))
    return " ".join(dict.fromkeys(filter(None, said)))


def _rows(every: Sequence[dict[str, float]], spec: Spec, base: MeasuredScale | None) -> tuple[float, bool]:
    """Give the rows of all ranks in a step, and whether the batch grew: by what was counted, where it could be."""
    if base is None:
        return rows_per_step(every), False
    meant = base.rows * (spec.ranks if spec.grows else 1)
    if not any(step["rows"] for step in every):
        return meant, spec.grows
    counted = rows_per_step(every)
    return counted, counted > base.rows * math.sqrt(spec.ranks)


def _point(runs: Sequence[Measured], base: MeasuredScale | None) -> MeasuredScale:
    """Make a point of runs of one kind; ``base`` is that of one rank."""
    spec = runs[0].spec
    of_runs = [full(its.steps) for its in runs]
    medians = [statistics.median(step["total"] for step in steps) for steps in of_runs]
    every = [step for steps in of_runs for step in steps]
    quarters = statistics.quantiles([step["total"] for step in every], n=4, method="inclusive")
    several = len(runs) > 1
    median = statistics.median(medians)
    rows, grows = _rows(every, spec, base)
    return MeasuredScale(
        ranks=spec.ranks,
        grows=grows,
        rows=rows,
        backwards=backwards_of(every),
        step=median,
        low=min(medians) if several else quarters[0],
        high=max(medians) if several else quarters[2],
        parts=parts(every, statistics.mean(its.python for its in runs), median, spec.ranks),
        alone=median / rows if base is None else base.alone,
        turned=grows is not spec.grows,
    )


def as_profile(runs: Sequence[Measured], found: Sequence[MeasuredScale], devices: int) -> dict[str, Any]:
    """Give what ``python -m ddp_patch plan --profile`` reads.

    Args:
        runs: that were measured.
        found: what ``points`` gave.
        devices: of a host: accelerators, or ranks that were tried.
    """
    base = found[0]
    network = next((its for its in sorted(runs, key=lambda its: its.spec.ranks) if its.network), None)
    alone = next(its for its in runs if its.spec.ranks == base.ranks)
    # On accelerators the host waits for its own kernels as well, and nobody knows for how long for other ranks.
    of_device = on_accelerator(alone.facts)
    each = [
        as_run(its.ranks, its.rows, by_device(its.parts, 0.0) if of_device else its.parts, its.backwards)
        for its in found
    ]
    if of_device:
        for its_run in each:
            del its_run["exposed_communication_seconds"]
    return profile(alone.facts, base.rows, each, network, devices, kept(alone))
