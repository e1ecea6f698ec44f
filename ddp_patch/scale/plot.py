"""What was measured, as a picture. matplotlib is imported here alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .points import MeasuredScale

_COLORS = {False: "tab:blue", True: "tab:orange"}
_WORDS = {False: "the batch stays", True: "the batch grows"}
_PARTS = {  # from below
    "computing": ("forward, backward, script", "#4c78a8"),
    "optimizer": ("optimizer", "#72b7b2"),
    "python": ("ddp_patch's Python", "#b279a2"),
    "effects": ("effects", "#eeca3b"),
    "loading": ("loader", "#f58518"),
    "waiting": ("waiting for other ranks", "#e45756"),
}


def draw(found: Sequence[MeasuredScale], name: str, path: Path) -> None:
    """Draw how many times as fast, and where a step's time goes, over the number of ranks.

    Args:
        found: what ``points.points`` gave.
        name: of the script.
        path: of the picture.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 — an extra
    from matplotlib.figure import Figure  # noqa: PLC0415 — an extra

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(name)
    faster, step = figure.subplots(1, 2)
    _speed_ups(faster, found)
    _steps(step, found)
    figure.savefig(path, dpi=120)


def _speed_ups(axes: Any, found: Sequence[MeasuredScale]) -> None:
    ranks = sorted({its.ranks for its in found})
    axes.plot(ranks, ranks, ":", color="gray", label="N times on N ranks")
    for grows, points in _by_scaling(found):
        at, speed = [its.ranks for its in points], [its.speed_up for its in points]
        below = [its.speed_up * (1 - its.step / its.high) for its in points]
        above = [its.speed_up * (its.step / its.low - 1) for its in points]
        axes.errorbar(at, speed, (below, above), fmt="o-", capsize=4, color=_COLORS[grows], label=_WORDS[grows])
    axes.set_xticks(ranks, [str(each) for each in ranks])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("ranks")
    axes.set_title("times as fast as one rank")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _steps(axes: Any, found: Sequence[MeasuredScale]) -> None:
    names = [f"{its.ranks}\n{'grows' if its.grows else 'stays' if its.ranks > 1 else ''}" for its in found]
    bottom = [0.0] * len(found)
    for name, (words, color) in _PARTS.items():
        heights = [1e3 * its.parts[name] for its in found]
        axes.bar(range(len(found)), heights, 0.7, bottom, label=words, color=color)
        bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
    axes.set_xticks(range(len(found)), names)
    axes.set_ylim(top=1.35 * max(bottom))  # room for the legend
    axes.set_xlabel("ranks, and the batch")
    axes.set_title("milliseconds of a step")
    axes.legend(fontsize="small", ncols=2, loc="upper left")


def _by_scaling(found: Sequence[MeasuredScale]) -> list[tuple[bool, list[MeasuredScale]]]:
    by = [(grows, [found[0], *(its for its in found[1:] if its.grows is grows)]) for grows in (False, True)]
    return [(grows, points) for grows, points in by if len(points) > 1]
