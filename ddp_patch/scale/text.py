"""What was measured, for people."""

from __future__ import annotations

from collections.abc import Sequence

from ..measure.busy import said
from ..plan.text import columns, where, wrapped
from ..plan.units import shown_bytes, shown_count, shown_seconds
from .points import MeasuredScale, turned

_ENOUGH = 0.8  # efficiency
_NEAR = 0.15  # of what is lost: parts below are not worth a word; one of six is above
_HEAD = ["ranks", "step", "spread", "waits", "rows/s", "times as fast", "efficiency"]
_HEADINGS = (
    "The batch stays, {rows} rows in a step (strong scaling; what ddp_patch does with your batch_size)",
    'Each rank has {rows} rows, the batch grows (weak scaling; enable(batch="per_device"), another learning rate)',
)
_WORDS = {
    "waiting": "waiting for other ranks",
    "loading": "waiting for the loader",
    "effects": "effects: files, folders, commands",
    "optimizer": "the optimizer, which every rank steps whole",
    "python": "ddp_patch's own Python",
    "computing": "computing, which got shorter by less than the rows did",
}
_ON_DEVICE = (
    "Ranks compute on accelerators, for which the host's clock does not wait: steps are right, and what they go to are "
    "the host's seconds, whose waits may be for its own kernels. python -m ddp_patch profile says what ranks wait for."
)
_LONGER = "computing as many rows as alone, which takes longer beside other ranks"  # where the batch grows


def written(
    found: Sequence[MeasuredScale],
    *,
    name: str,
    parameters: int,
    gradients: int,
    threads: str,
    cores: int,
    repeat: int,
    busy: float,
    kept: float = 0.0,
    apart: str = "",
) -> str:
    """Lay out what was measured: a table for each scaling, and what keeps it from N times as fast.

    Args:
        found: what ``points.points`` gave.
        name: of the script.
        parameters: that it trains.
        gradients: bytes that a step sums up.
        threads: of each rank.
        cores: of this host; 0 where ranks have accelerators.
        repeat: runs of each kind.
        busy: part of the cores that other programs had meanwhile.
        kept: bytes that one rank keeps for the backward of its rows; 0 if unknown.
        apart: what ``points.apart`` gave.
    """
    base = found[0]
    several = f" in {base.backwards} batches" if base.backwards > 1 else ""
    keeps = f", and keeps {shown_bytes(kept)} for their backward" if kept else ""
    lines = wrapped(
        f"{name}: {parameters:,} parameters, {shown_bytes(gradients)} of gradients in each step; one rank takes "
        f"{shown_seconds(base.step)} for {shown_count(base.rows)} rows{several}{keeps}. {_machine(threads, cores)}"
    )
    for grows in (False, True):
        points = [base, *(its for its in found[1:] if its.grows is grows)]
        if len(points) > 1:
            lines += ["", _HEADINGS[grows].format(rows=shown_count(base.rows))]
            lines += [f"  {line}" for line in columns([_HEAD, *map(_row, points)])]
            lines += _why(points)
    if turned(found):
        lines += ["", *wrapped(turned(found))]
    if apart:
        lines += ["", *wrapped(apart)]
    most = max(its.ranks for its in found)
    if cores and most > cores:
        lines += ["", *wrapped(f"{most} ranks share {cores} cores here: none of them had one of its own.")]
    if said(busy):
        lines += ["", *wrapped(said(busy))]
    if not cores:
        lines += ["", *wrapped(_ON_DEVICE)]
    spread = "least and largest median of the runs" if repeat > 1 else "quartiles of the steps"
    lines += ["", *wrapped(f"step: median. spread: {spread}. waits: for other ranks. efficiency: 100% is N times.")]
    return "\n".join(lines) + "\n"


def _machine(threads: str, cores: int) -> str:
    return f"Each rank computes in {threads} thread{'s' if threads != '1' else ''}, of {cores} cores." if cores else ""


def _row(its: MeasuredScale) -> list[str]:
    return [
        str(its.ranks),
        shown_seconds(its.step),
        f"{shown_seconds(its.low)} to {shown_seconds(its.high)}",
        shown_seconds(its.parts["waiting"]),
        shown_count(its.throughput),
        f"{its.speed_up:.2f}",
        f"{its.efficiency:.0%}",
    ]


def _why(points: Sequence[MeasuredScale]) -> list[str]:
    """Say from how many ranks on it is below what pays, and what the lost time goes to."""
    base = points[0]
    falls = [point for point in points if point.efficiency < _ENOUGH]
    if not falls:
        return [f"  Never below {_ENOUGH:.0%}."]
    its, on = falls[0], where([point.ranks for point in falls], [point.ranks for point in points])
    lost = sorted(lost_to(its, base).items(), key=lambda item: -item[1])
    words = {**_WORDS, "computing": _LONGER} if its.grows else _WORDS
    near = _NEAR * sum(part for _, part in lost)
    worth = [f"{shown_seconds(part)} to {words[name]}" for name, part in lost[:2] if part > near]
    whole = shown_seconds(its.step)
    because = f"of its {whole} it loses" if on.startswith("from") else f"the {whole} of {its.ranks} ranks lose"
    return wrapped(f"Below {_ENOUGH:.0%} {on}: {because} {' and '.join(worth)}.", "  ")


def lost_to(its: MeasuredScale, base: MeasuredScale) -> dict[str, float]:
    """Give the seconds of a step above those that it had if all of it were shared, by what they go to.

    Args:
        its: on several ranks.
        base: on one.
    """
    share = its.rows / base.rows / its.ranks
    return {name: max(its.parts[name] - base.parts[name] * share, 0.0) for name in _WORDS}
