"""The step of N ranks: a rank's rows, and the part of the all-reduce that its backward does not hide.

Strong scaling keeps the batch of a step and deals it to more ranks, as ddp_patch does with a script's batch; weak
scaling keeps the rows of a rank, so that the batch grows, and another learning rate suits it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from .job import PlannedJob, Run
from .network import Shape, all_reduce, fastest
from .overlap import buckets, exposed

SCALINGS = ("strong", "weak")


@dataclass(frozen=True)
class PlannedScale:
    """One number of ranks."""

    ranks: int
    hosts: int
    devices: int  # of each host
    rows: float  # of all ranks, in a step
    rows_of_a_rank: float  # of the one that has most
    algorithm: str
    all_reduce: float  # seconds of all buckets, hidden or not
    exposed: float  # seconds of these after the backward
    computing: float  # seconds
    step: float  # seconds
    throughput: float  # rows/s
    speed_up: float  # to one rank
    efficiency: float  # speed_up / ranks
    lost: dict[str, float]  # seconds of a step by what they go to, next to a step at 100 %


def rows_of_a_rank(rows: float, ranks: int, batches: int = 1) -> float:
    """Give the rows of the rank that has most; all of them where a batch has fewer than ranks, as it is not dealt.

    Args:
        rows: of a step.
        ranks: their number.
        batches: that the rows are in, which are dealt one by one.
    """
    each = rows / batches
    return rows if each < ranks else float(batches * math.ceil(each / ranks))


def point(job: PlannedJob, ranks: int, scaling: str, *, sends: float = 1.0, times: int = 1) -> PlannedScale:
    """Give what a step on so many ranks takes.

    Args:
        job: what is planned for.
        ranks: their number.
        scaling: ``strong`` or ``weak``.
        sends: share of the gradients' bytes that travels, under compression.
        times: all-reduces for each bucket.
    """
    hosts, devices = job.placed(ranks)
    if scaling == "weak":
        return _point(job, hosts, devices, job.rows * ranks, job.batches, ranks, sends, times)
    return _point(job, hosts, devices, job.whole or job.rows, job.batches, 1, sends, times)


def predicted(job: PlannedJob, run: Run) -> PlannedScale:
    """Give what the step of a measured run should have taken."""
    return _point(job, run.hosts, run.ranks // run.hosts, run.rows, run.batches, 1, 1.0, 1)


def _point(
    job: PlannedJob, hosts: int, devices: int, rows: float, batches: int, steps: int, sends: float, times: int
) -> PlannedScale:
    """Compare with one rank that does the same rows in so many steps. Of several backwards the last one alone hides."""
    ranks = hosts * devices
    shape = job.shape(ranks, hosts)
    rank_rows = rows_of_a_rank(rows, ranks, batches)
    computing = job.work.seconds(rank_rows)
    sizes = buckets(job.gradients, job.bucket)
    backward = job.work.hides(rank_rows) / batches
    seconds = _seconds(job, shape, sends, times)
    waits = exposed(sizes, backward, seconds)
    without = replace(shape, within=replace(shape.within, latency=0.0), between=replace(shape.between, latency=0.0))
    for_bytes = min(exposed(sizes, backward, _seconds(job, without, sends, times)), waits)
    step, alone = computing + waits, steps * job.work.seconds(rows / steps)
    lost = {
        "bandwidth": for_bytes,
        "latency": waits - for_bytes,
        "fixed": job.work.fixed * (1 - steps / ranks),
        "rows": job.work.per_row * (rank_rows - rows / ranks),
    }
    return PlannedScale(
        ranks=ranks,
        hosts=hosts,
        devices=devices,
        rows=rows,
        rows_of_a_rank=rank_rows,
        algorithm=fastest(max(sizes) * sends / times, shape) if job.algorithm == "fastest" else job.algorithm,
        all_reduce=math.fsum(map(seconds, sizes)),
        exposed=waits,
        computing=computing,
        step=step,
        throughput=rows / step,
        speed_up=alone / step,
        efficiency=alone / step / ranks,
        lost=lost,
    )


def _seconds(job: PlannedJob, shape: Shape, sends: float, times: int) -> Callable[[float], float]:
    """Seconds of one bucket, by its bytes."""
    if shape.ranks == 1:
        return lambda size: 0.0

    @functools.cache
    def seconds(size: float) -> float:
        return times * all_reduce(size * sends / times, shape, job.algorithm).seconds

    return seconds


def below(points: list[PlannedScale], efficiency: float) -> list[PlannedScale]:
    """Give the points below an efficiency; points in the order of their ranks."""
    return [its for its in points if its.efficiency < efficiency]


def reason(its: PlannedScale) -> str:
    """Name what most of the lost time goes to: ``bandwidth``, ``latency``, ``fixed`` or ``rows``."""
    return max(its.lost, key=lambda name: its.lost[name])
