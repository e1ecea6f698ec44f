"""All that a plan says, as JSON has it; ``text`` and ``plot`` show it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from . import advice, learning
from .compression import compressed
from .job import PlannedJob, as_json
from .memory import WAYS, bytes_per_parameter, per_rank
from .scaling import PlannedScale, below, point, predicted, reason

MARKS = (0.8, 0.5)  # efficiencies that are looked for


def plan(job: PlannedJob, ranks: Sequence[int], scalings: Sequence[str], assumed: Sequence[str] = ()) -> dict[str, Any]:
    """Give what so many ranks will bring.

    Args:
        job: what is planned for.
        ranks: numbers of them, rising.
        scalings: of ``strong`` and ``weak``.
        assumed: what nobody said, in words.
    """
    points = {scaling: [point(job, each, scaling) for each in ranks] for scaling in scalings}
    return as_json(  # type: ignore[no-any-return]
        {
            "parameters": job.parameters,
            "gradient_bytes": job.gradients,
            "bucket_bytes": job.bucket,
            "batch_rows": job.rows,
            "batches": job.batches,
            "seconds_alone": job.work.seconds(job.rows),
            "fixed_seconds": job.work.fixed,
            "backward_share": job.work.backward,
            "optimizer": job.optimizer,
            "precision": job.precision,
            "devices_per_host": job.devices,
            "network": {"within": dataclasses.asdict(job.within), "between": dataclasses.asdict(job.between)},
            "assumed": list(assumed),
            "scaling": {name: [dataclasses.asdict(its) for its in those] for name, those in points.items()},
            "falls_below": {name: _marks(those) for name, those in points.items()},
            "memory": {name: _memory(job, those) for name, those in points.items()},
            "compression": {
                name: {
                    hook: {**dataclasses.asdict(its), "write": advice.hook_line(hook)}
                    for hook, its in compressed(job, ranks[-1], name).items()
                }
                for name in scalings
            },
            "learning_rate": {name: _rates(job, those) for name, those in points.items()},
            "measured": [_compared(job, run) for run in job.runs if run.ranks > 1 or len(job.runs) > 1],
        }
    )


def _marks(points: list[PlannedScale]) -> list[dict[str, Any]]:
    found = []
    for mark in MARKS:
        falls = below(points, mark)
        if falls:
            words, on = advice.why(reason(falls[0]), falls[0].hosts == 1), [its.ranks for its in falls]
            found.append({"efficiency": mark, "ranks": on[0], "on": on, "reason": reason(falls[0]), "why": words})
    return found


def _memory(job: PlannedJob, points: list[PlannedScale]) -> dict[str, Any]:
    """What ranks hold, the fewest that each way fits on, and what to write where DDP does not fit."""

    def footprint(its: PlannedScale, way: str) -> Any:
        activations = (job.activations or 0.0) * its.rows_of_a_rank / job.rows
        return per_rank(
            job.parameters,
            job.optimizer,
            job.precision,
            ranks=its.ranks,
            activations=activations,
            way=way,
            blocks=job.blocks,
        )

    found: dict[str, Any] = {
        "bytes_per_parameter": bytes_per_parameter(job.optimizer, job.precision),
        "activations_known": job.activations is not None,
        "device_bytes": job.memory,
        "ranks": [
            {
                "ranks": its.ranks,
                **{
                    way: {**dataclasses.asdict(footprint(its, way)), "total": footprint(its, way).total} for way in WAYS
                },
            }
            for its in points
        ],
    }
    if job.memory is None:
        return found
    limit = job.memory
    fits_on = {way: [its.ranks for its in points if footprint(its, way).total <= limit] for way in WAYS}
    fits = {way: next(iter(ranks), None) for way, ranks in fits_on.items()}
    found["fits_from"], found["fits_on"] = fits, fits_on
    found["fits_everywhere"] = all(footprint(its, "ddp").total <= limit for its in points)
    if found["fits_everywhere"]:
        return found
    last, write = points[-1], {}
    first = footprint(points[0], "ddp")
    if first.activations > limit / 2:
        write["checkpoint"] = advice.lines("checkpoint", job.optimizer)
    if first.total - first.buffers <= limit:
        write["view"] = advice.lines("view", job.optimizer)
    for way in ("zero1", "fsdp"):
        if fits[way] is not None:
            write[way] = advice.lines(way, job.optimizer)
    if fits["fsdp"] is None:
        write["tensor"] = advice.lines("tensor", job.optimizer, last.hosts, last.devices)
    found["write"] = write
    return found


def _rates(job: PlannedJob, points: list[PlannedScale]) -> dict[str, Any]:
    its = points[-1]
    times = its.rows / job.rows
    found: dict[str, Any] = {
        "rule": learning.rule(job.optimizer) if times != 1 else "unchanged",
        "rows": its.rows,
        "factor": learning.factor(job.optimizer, times),
    }
    if job.rate is not None:
        found["from"], found["to"] = job.rate, job.rate * found["factor"]
    if job.critical is not None and times != 1:
        less, more = learning.steps_needed(its.rows, job.critical), learning.steps_needed(job.rows, job.critical)
        found["steps_of_before"] = less / more
        found["rows_of_before"] = less / more * times
    return found


def _compared(job: PlannedJob, run: Any) -> dict[str, Any]:
    its = predicted(job, run)
    return {
        "ranks": run.ranks,
        "hosts": run.hosts,
        "rows": run.rows,
        "measured_seconds": run.step,
        "predicted_seconds": its.step,
        "error": its.step / run.step - 1,
    }
