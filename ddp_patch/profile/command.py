"""``python -m ddp_patch profile``: run, measure, tell."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..job.hosts import accelerator_count
from ..measure.busy import Cores
from ..measure.parts import as_run, kept, profile
from ..measure.runs import Measured, Spec, noted_of, perform
from ..measure.session import guarded, scratch
from . import chrome, timeline
from .arguments import USAGE, ProfileRequest, parse
from .found import Found, found
from .page import page
from .plots import pictures
from .text import written


def command(argv: Sequence[str]) -> int:
    """Profile a script, and give the exit code."""
    return guarded("profile", USAGE, lambda: _profile(argv))


def _profile(argv: Sequence[str]) -> int:
    accelerators = accelerator_count()
    request = parse(argv, accelerators)
    threads = max(1, (os.cpu_count() or 1) // request.ranks)
    spec = Spec(
        script=request.script,
        args=request.args,
        module=request.module,
        ranks=request.ranks,
        warmup=request.warmup,
        steps=request.steps,
        traced=request.traced,
        goes_on=request.goes_on,
    )
    clock = Cores.look()
    with scratch() as root:
        run = perform(spec, root, Path.cwd(), request.timeout, threads, shows=True)
        busy = clock.share()
        traces = [json.loads((run.records / f"trace.{rank}.json").read_text("utf-8")) for rank in range(request.ranks)]
    noted = [noted_of(its, "traced")[0] for its in run.by_rank]
    its = found(run, [timeline.read(*pair) for pair in zip(traces, noted, strict=True)], busy)
    _leave(request, run, its, chrome.joined(traces, noted), accelerators or request.ranks)
    sys.stderr.write(written(its))
    sys.stderr.write(
        f"\nThe page is {request.out / 'index.html'}, the timeline of all ranks {request.out / 'trace.json'}"
    )
    sys.stderr.write(" (for ui.perfetto.dev).\n")
    return 0


def _leave(request: ProfileRequest, run: Measured, its: Found, trace: dict[str, Any], devices: int) -> None:
    request.out.mkdir(parents=True, exist_ok=True)
    drawn = pictures(its) if request.draws else {}
    _write(request.out / "index.html", page(its, drawn, request.steps, request.traced))
    _write(request.out / "trace.json", json.dumps(trace))
    parts = {name: sum(rank.parts[name] for rank in its.ranks) / len(its.ranks) for name in its.ranks[0].parts}
    its_run = as_run(request.ranks, its.rows, parts, its.backwards)
    planned = profile(run.facts, its.rows, [its_run], run if run.network else None, devices, kept(run))
    _write(request.out / "profile.json", json.dumps(planned, indent=2) + "\n")


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
