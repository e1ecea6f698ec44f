"""What is planned for: a model, its step on one rank, and the machines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .network import Link, Shape
from .overlap import CAP


@dataclass(frozen=True)
class StepWork:
    """What a step computes on one rank that is alone."""

    per_row: float  # seconds of each row: forward, backward, loading
    fixed: float = 0.0  # seconds however few rows there are: the optimizer, Python, starting kernels
    backward: float = 2 / 3  # share of all but ``idle`` in which gradients come: two of three matrix products
    idle: float = 0.0  # seconds of ``fixed`` that are known to be no backward: the optimizer, Python, effects

    def seconds(self, rows: float) -> float:
        """Give the seconds of a step with so many rows."""
        return self.fixed + self.per_row * rows

    def hides(self, rows: float) -> float:
        """Give the seconds of such a step in which gradients come, and may travel."""
        return self.backward * (self.seconds(rows) - self.idle)


@dataclass(frozen=True)
class Run:
    """One measured step, of a profile."""

    ranks: int
    hosts: int
    rows: float  # of all ranks
    step: float  # seconds
    parts: dict[str, float] = field(default_factory=dict)  # seconds of the step, by name
    batches: int = 1  # of a step, each with a backward of its own


@dataclass(frozen=True)
class PlannedJob:
    """All that the arithmetic needs."""

    parameters: float
    gradients: float  # bytes
    rows: float  # of the batch of one step, as the script has it on one process
    work: StepWork
    devices: int  # of a host
    within: Link
    between: Link
    bucket: float = CAP  # bytes
    algorithm: str = "fastest"
    optimizer: str = "adamw"
    precision: str = "fp32"
    activations: float | None = None  # bytes, for ``rows`` rows
    memory: float | None = None  # bytes of a device
    blocks: int = 12
    rate: float | None = None  # learning rate at ``rows``
    critical: float | None = None  # critical batch size
    batches: int = 1  # of a step, each with a backward of its own: accumulation
    whole: float | None = None  # rows of the batch that strong scaling deals; None for ``rows``
    runs: tuple[Run, ...] = ()
    knows_between: bool = True  # whether anybody said how fast hosts reach each other

    def shape(self, ranks: int, hosts: int) -> Shape:
        """Give the job of so many ranks."""
        return Shape(hosts, ranks // hosts, self.within, self.between)

    def placed(self, ranks: int) -> tuple[int, int]:
        """Give on how many hosts so many ranks are, and how many are on each."""
        hosts = max(1, ranks // self.devices)
        return hosts, ranks // hosts


def as_json(value: Any) -> Any:
    """Round numbers for output: nobody measures to more than six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: as_json(its) for name, its in value.items()}
    return [as_json(its) for its in value] if isinstance(value, (list, tuple)) else value
