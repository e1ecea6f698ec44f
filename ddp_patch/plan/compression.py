"""What gradients in fewer bytes would bring, by the hooks that torch ships and ``comm_hook`` names.

PowerSGD: Vogels, Karimireddy and Jaggi, 2019 (arXiv 1905.13727). What compressing itself computes is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from .job import PlannedJob
from .memory import PRECISIONS
from .scaling import PlannedScale, point

MATRIX = 1024  # rows and columns of the weights that PowerSGD is shown for


@dataclass(frozen=True)
class Hook:
    """One way to send less."""

    name: str  # of ddp_patch's option
    sends: float  # share of the bytes
    times: int  # all-reduces for each bucket


def powersgd(rows: int, columns: int, rank: int = 1) -> float:
    """Give the share of a matrix that PowerSGD sends: ``rank`` vectors of each side.

    Args:
        rows: of the weight.
        columns: of the weight.
        rank: of the approximation; torch's default is 1.
    """
    return min(rank * (rows + columns) / (rows * columns), 1.0)


def hooks(precision: str) -> list[Hook]:
    """Give the hooks that send less than gradients of this precision have. fp16 sends what bf16 does."""
    width = PRECISIONS[precision].gradient
    halved = [Hook("bf16", 2 / width, 1)] if width > 2 else []
    return [*halved, Hook("powersgd", powersgd(MATRIX, MATRIX), 2)]


def compressed(job: PlannedJob, ranks: int, scaling: str) -> dict[str, PlannedScale]:
    """Give what a step would take under each hook."""
    return {its.name: point(job, ranks, scaling, sends=its.sends, times=its.times) for its in hooks(job.precision)}
