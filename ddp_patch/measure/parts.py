"""What a step goes to, and the profile that ``python -m ddp_patch plan`` reads of it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from ..pace import KINDS
from ..plan.profile import FORMAT, VERSION
from ..plan.scaling import rows_of_a_rank
from .network import link
from .runs import Measured, noted_of

_USUAL = 3  # one in so many steps


def rows_per_step(steps: Sequence[dict[str, float]]) -> float:
    """Rows of a full step, as ``full`` tells them, or their mean. A step whose rows nobody knows counts as one."""
    rows = [step["rows"] for step in full(steps)]
    return statistics.mean(rows) or 1.0


def full(steps: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """Leave out the steps with fewer rows, as the last batch of each epoch has: all where no number is usual."""
    usual = max(statistics.multimode(step["rows"] for step in steps))  # of two, as epochs of two batches have
    found = [step for step in steps if step["rows"] == usual]
    return found if _USUAL * len(found) >= len(steps) else list(steps)


def backwards_of(steps: Sequence[dict[str, float]]) -> int:
    """Batches of most steps, each with a backward of its own."""
    return int(statistics.mode(step["backwards"] for step in steps))


def parts(steps: Sequence[dict[str, float]], python: float, median: float, ranks: int) -> dict[str, float]:
    """Give what a step goes to, by the middle half of the steps, as parts of their median.

    Args:
        steps: each with its ``total``, and its seconds by ``KINDS``.
        python: seconds of ddp_patch's own Python in each.
        median: seconds of a step.
        ranks: that were measured; on one, backwards wait for nobody, and are a part of what is computed.
    """
    quarter = len(steps) // 4
    middle = sorted(steps, key=lambda step: step["total"])[quarter : len(steps) - quarter]
    total = statistics.mean(step["total"] for step in middle)
    found = {name: statistics.mean(step[name] for step in middle) / total * median for name in KINDS}
    left = max(median - sum(found.values()), 0.0)
    found["python"] = min(python, 0.9 * left)  # profiled in other steps than these
    found["computing"] = left - found["python"]
    if ranks == 1:
        found["backward"] = min(statistics.mean(step["backward"] for step in middle) / total * median, left)
    return found


def kept(run: Measured) -> tuple[float, float] | None:
    """Give the bytes that a rank keeps for a backward, of the rank that has most, and its rows; None if unknown."""
    noted = [its for of_rank in run.by_rank for its in noted_of(of_rank, "kept")]
    if not noted:
        return None
    most = max(noted, key=lambda its: its["bytes"])
    return float(most["bytes"]), rows_of_a_rank(max(most["rows"], 1.0) / most["backwards"], run.spec.ranks)


def profile(
    facts: dict[str, Any],
    rows: float,
    runs: Sequence[dict[str, Any]],
    network: Measured | None,
    devices: int,
    its_kept: tuple[float, float] | None = None,
) -> dict[str, Any]:
    """Put together what ``plan`` reads.

    Args:
        facts: of the script.
        rows: of a step with the script's own batch.
        runs: each of ``as_run``, the first with this batch.
        network: a run on several ranks; None where there was none.
        devices: of a host: accelerators, or ranks that were tried.
        its_kept: what ``kept`` gave.
    """
    found = {"format": FORMAT, "version": VERSION, **facts, "batch_rows": rows, "runs": list(runs)}
    if its_kept is not None:
        found["activation_bytes"] = its_kept[0] / its_kept[1] * rows / runs[0]["backwards"]
    if network is not None:
        found["network"] = {
            "devices_per_host": devices,
            "within": link(network.spec.ranks, network.network["few"], network.network["many"]),
        }
    return found


def by_device(its: dict[str, float], exposed: float) -> dict[str, float]:
    """Give the parts of a step on an accelerator: the host's waiting is for its own kernels as well, and is computing.

    What the backward takes is not among them: the host queues its kernels, and goes on.

    Args:
        its: seconds by name, of ``parts``.
        exposed: seconds of communication that no kernel hid, by torch's profiler.
    """
    either = its["computing"] + its["waiting"]
    waiting = min(exposed, either)
    its = {name: seconds for name, seconds in its.items() if name != "backward"}
    return {**its, "waiting": waiting, "computing": either - waiting}


def as_run(ranks: int, rows: float, its: dict[str, float], backwards: int) -> dict[str, Any]:
    """Give a run of a profile.

    Args:
        ranks: how many.
        rows: of all of them in a step.
        its: seconds by name, of ``parts``.
        backwards: of a step, one for each of its batches.
    """
    named = {f"{name}_seconds": its[name] for name in ("loading", "optimizer", "python", "effects")}
    backward = {"backward_seconds": min(its["backward"], its["computing"])} if its.get("backward") else {}
    return {
        "ranks": ranks,
        "rows": rows,
        "backwards": backwards,
        "step_seconds": sum(its[name] for name in (*KINDS, "python", "computing")),
        "compute_seconds": its["computing"],
        **backward,
        **named,
        "exposed_communication_seconds": its["waiting"],
    }
