"""The page's pictures, as SVG. matplotlib is imported here alone."""

from __future__ import annotations

import io
from typing import Any

from .found import Found
from .text import PARTS

COLORS = {
    "computing": "#4c78a8",
    "waiting": "#e45756",
    "loading": "#f58518",
    "effects": "#eeca3b",
    "optimizer": "#72b7b2",
    "python": "#b279a2",
}
_LAYERS = 12


def pictures(its: Found) -> dict[str, str]:
    """Draw them, and give each as SVG by its title."""
    found = {"Where a step goes": _svg(_ranks(its))}
    if any(rank.timeline.steps for rank in its.ranks):
        found["One traced step"] = _svg(_step(its))
    if its.layers:
        found["Layers"] = _svg(_layers(its))
    return found


def _figure(height: float) -> Any:
    from matplotlib.figure import Figure  # noqa: PLC0415 — an extra

    return Figure(figsize=(10, height), layout="constrained")


def _svg(figure: Any) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _ranks(its: Found) -> Any:
    figure = _figure(1.6 + 0.45 * len(its.ranks))
    axes = figure.subplots()
    at, left = range(len(its.ranks)), [0.0] * len(its.ranks)
    for name, words in PARTS.items():
        widths = [1e3 * rank.parts[name] for rank in its.ranks]
        axes.barh(at, widths, 0.6, left, label=words, color=COLORS[name])
        left = [begin + width for begin, width in zip(left, widths, strict=True)]
    axes.set_yticks(at, [f"rank {rank}" for rank in at])
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds")
    figure.legend(loc="outside upper center", ncols=3, fontsize="small")
    return figure


def _step(its: Found) -> Any:
    """The last traced step of each rank: what it waits for, above its collectives."""
    figure = _figure(1.4 + 0.9 * len(its.ranks))
    axes = figure.subplots()
    labels, kinds = [], set()
    for number, rank in enumerate(its.ranks):
        step = rank.timeline.steps[-1]
        top, bottom = 2 * number, 2 * number + 1
        labels += [f"rank {number}", "collectives"]
        axes.barh(top, step.seconds / 1e3, 0.8, 0.0, color=COLORS["computing"], alpha=0.35)
        for kind, begin, end, _ in step.spans:
            axes.barh(top, (end - begin) / 1e3, 0.8, begin / 1e3, color=COLORS[kind])
            kinds.add(kind)
        for each in step.collectives:
            axes.barh(bottom, (each.end - each.begin) / 1e3, 0.5, each.begin / 1e3, color="#54a24b", edgecolor="white")
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds since the step before ended, with torch's profiler on")
    from matplotlib.patches import Patch  # noqa: PLC0415 — an extra

    shown = [Patch(color=COLORS["computing"], alpha=0.35, label="computing")]
    shown += [Patch(color=COLORS[kind], label=PARTS[kind]) for kind in PARTS if kind in kinds]
    shown.append(Patch(color="#54a24b", label="collective"))
    figure.legend(handles=shown, loc="outside upper center", ncols=5, fontsize="small")
    return figure


def _layers(its: Found) -> Any:
    shown = list(its.layers.items())[:_LAYERS]
    figure = _figure(1.2 + 0.3 * len(shown))
    axes = figure.subplots()
    forward = [max(1e3 * seconds[0], 0.0) for _, seconds in shown]
    axes.barh(range(len(shown)), forward, 0.7, label="forward", color="#4c78a8")
    axes.barh(range(len(shown)), [1e3 * its[1] for _, its in shown], 0.7, forward, label="backward", color="#9ecae9")
    axes.set_yticks(range(len(shown)), [name for name, _ in shown], fontsize="small")
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds of a step on rank 0, with torch's profiler on")
    axes.legend(fontsize="small", loc="lower right")
    return figure
