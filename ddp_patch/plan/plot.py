"""A plan as a picture. matplotlib is imported here alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .problems import PlanError


def draw(found: dict[str, Any], path: str) -> None:
    """Draw how many times as fast, and where a step's time goes, over the number of ranks.

    Args:
        found: what ``planned.plan`` gave.
        path: of the picture; its ending says which kind.

    Raises:
        PlanError: without matplotlib, or where the picture cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 — an extra
        from matplotlib.figure import Figure  # noqa: PLC0415 — an extra
    except ImportError:
        raise PlanError("--plot needs matplotlib. Write pip install 'ddp_patch[plot]'") from None
    if not Path(path).suffix:
        raise PlanError(f"{path} has no ending that says which kind of picture it is. Write --plot plan.png")
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    faster, step = figure.subplots(1, 2)
    words = {"strong": "the batch stays", "weak": "the batch grows"}
    colors = {"strong": "tab:blue", "weak": "tab:orange"}
    for name, points in found["scaling"].items():
        ranks = [its["ranks"] for its in points]
        faster.plot(ranks, [its["speed_up"] for its in points], "o-", color=colors[name], label=words[name])
        step.plot(ranks, [its["step"] * 1e3 for its in points], "o-", color=colors[name], label=f"step: {words[name]}")
        waits = [its["exposed"] * 1e3 for its in points]
        step.plot(ranks, waits, "x--", color=colors[name], label=f"of which it waits: {words[name]}")
    faster.plot(ranks, ranks, ":", color="gray", label="N times on N ranks")
    for axes, title in ((faster, "times as fast as one rank"), (step, "milliseconds")):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ranks, [str(each) for each in ranks], rotation=45)
        axes.set_xlabel("ranks")
        axes.set_title(title)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    faster.set_yscale("log", base=2)
    faster.yaxis.set_major_formatter("{x:g}")
    step.set_yscale("symlog", linthresh=1)  # what is waited for may be nothing
    step.set_ylim(bottom=0, top=3e3 * max(its["step"] for points in found["scaling"].values() for its in points))
    step.yaxis.set_major_formatter("{x:g}")
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:  # matplotlib's ValueError: an ending that names no kind of picture
        reason = error.strerror if isinstance(error, OSError) else error
        raise PlanError(f"{path} cannot be written: {reason}. Write --plot plan.png") from None
