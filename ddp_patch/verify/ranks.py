"""Where ranks are apart that have to be together: gradients and statistics when an optimizer steps, files."""

from __future__ import annotations

from collections.abc import Iterator

from .difference import Difference
from .observed import Observed, ObservedStep
from .tolerance import Tolerance


def apart(ranks: list[Observed], tolerance: Tolerance) -> Iterator[Difference]:
    """Find what ranks hold differently, the first step of each."""
    yield from _first(ranks, tolerance)
    yield from _weights(ranks, tolerance)
    yield from _files(ranks)


def _first(ranks: list[Observed], tolerance: Tolerance) -> Iterator[Difference]:
    reported: set[str] = set()
    for steps in zip(*(rank.steps for rank in ranks), strict=False):
        one = steps[0]
        for other, step in enumerate(steps[1:], 1):
            if "gradient" not in reported and _differ(one.norm, step.norm, tolerance, one):
                reported.add("gradient")
                said = (
                    f"ranks step by gradients of their own: norm {one.norm or 0:.9g} on rank 0, {step.norm or 0:.9g} "
                    f"on rank {other}"
                )
                yield Difference("gradient", "ranks", one.step, one.line, said)
            for name, value in one.buffers.items():
                if "buffers" not in reported and _differ(value, step.buffers.get(name), tolerance, one):
                    reported.add("buffers")
                    said = f"ranks hold another {name}: norm {value:.9g} on rank 0, {step.buffers.get(name, 0):.9g} "
                    said += f"on rank {other}; alone it is that of the whole batch"
                    yield Difference("weights", "statistics", one.step, one.line, said)
            if "rate" not in reported and one.rates != step.rates:
                reported.add("rate")
                said = f"ranks have other learning rates: {one.rates} on rank 0, {step.rates} on rank {other}"
                yield Difference("rate", "ranks", one.step, one.line, said)


def _weights(ranks: list[Observed], tolerance: Tolerance) -> Iterator[Difference]:
    """Weights that a script without an optimizer updates itself."""
    for updates in zip(*(rank.weight_norms for rank in ranks), strict=False):
        one = updates[0]
        for other, update in enumerate(updates[1:], 1):
            for name, norm in one.norms.items():
                measured = update.norms.get(name)
                if measured is not None and tolerance.exceeds(norm, measured, 0.0, one.age) > 1:
                    said = f"ranks hold another {name}: norm {norm:.9g} on rank 0, {measured:.9g} on rank {other}"
                    yield Difference("weights", "ranks", one.step, one.line, said)
                    return


def _differ(one: float | None, other: float | None, tolerance: Tolerance, step: ObservedStep) -> bool:
    if one is None or other is None:
        return one is not other
    return tolerance.exceeds(one, other, 0.0, step.age) > 1


def _files(ranks: list[Observed]) -> Iterator[Difference]:
    first = {note["path"]: note for note in ranks[0].notes.get("write", [])}
    for number, rank in enumerate(ranks[1:], 1):
        for note in rank.notes.get("write", []):
            if note["path"] in first:
                said = f"{note['path']} is written by rank 0 and by rank {number}, into each other. Write it on rank 0"
                yield Difference("file", note["path"], note["step"], note["line"], said)
                return
