"""``python -m ddp_patch scale``: run, measure, tell."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ..job.hosts import accelerator_count
from ..measure.busy import Cores
from ..measure.runs import Measured, MeasureError, Spec, perform
from ..measure.session import guarded, scratch
from ..verify import progress
from .arguments import USAGE, ScaleRequest, parse
from .plot import draw
from .points import apart, as_profile, points
from .text import written


def command(argv: Sequence[str]) -> int:
    """Measure a script on several numbers of ranks, and give the exit code."""
    return guarded("scale", USAGE, lambda: _scale(argv))


def _scale(argv: Sequence[str]) -> int:
    accelerators = accelerator_count()
    request = parse(argv, accelerators)
    cores = os.cpu_count() or 1
    # Alike in all runs: alone a script would otherwise have the cores of all ranks.
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, cores // max(request.ranks)))
    clock = Cores.look()
    with scratch() as root:
        runs, refused = measured(request, root, int(threads) if threads.isdigit() else 1)
    busy = clock.share()
    found = points(runs)
    base = runs[0].facts
    profile = as_profile(runs, found, accelerators or max(request.ranks))
    sys.stdout.write(
        written(
            found,
            kept=profile.get("activation_bytes", 0.0),
            name=request.script.name,
            parameters=base["parameters"],
            gradients=base["gradient_bytes"],
            threads=threads,
            cores=0 if accelerators else cores,
            repeat=request.repeat,
            busy=busy,
            apart=apart(runs),
        )
    )
    if refused:
        sys.stdout.write(
            f"\nNothing was measured with a batch that grows (--scaling strong leaves that out): {refused}\n"
        )
    request.out.mkdir(parents=True, exist_ok=True)
    path = request.out / "scale.json"
    path.write_text(json.dumps(profile, indent=2) + "\n", encoding="utf-8")
    drawn = ""
    if request.draws:
        draw(found, request.script.name, request.out / "scale.png")
        drawn = f", as a picture in {request.out / 'scale.png'}"
    sys.stdout.write(f"\nMeasured numbers are in {path}{drawn}. What more ranks would bring on one host:\n")
    most = 2 * max(request.ranks)
    devices = max(accelerators, most)  # of one host: how fast hosts reach each other was not measured
    links = "" if "network" in profile else " --bandwidth-within BYTES/S"  # of a script that distributes itself
    sys.stdout.write(f"  python -m ddp_patch plan --profile {path} --devices {devices} --ranks 2..{most}{links}\n")
    return 0


def measured(request: ScaleRequest, root: Path, threads: int) -> tuple[list[Measured], str]:
    """Run all that is asked for, in turn: one rank first, then others, and again.

    Where batches that stay are measured as well, those that grow may fail: a dataset that makes them has none.

    Args:
        request: what is asked.
        root: an empty folder.
        threads: of each rank.

    Returns:
        what was measured, and why no batch could grow, if none could.

    Raises:
        MeasureError: if the script cannot be measured.
    """
    kinds = [(1, False)]
    kinds += [(ranks, name == "weak") for name in request.scalings for ranks in request.ranks if ranks > 1]
    found: list[Measured] = []
    refused = ""
    for turn in range(request.repeat):
        for ranks, grows in kinds:
            if grows and refused:
                continue
            spec = Spec(
                script=request.script,
                args=request.args,
                module=request.module,
                ranks=ranks,
                grows=grows,
                warmup=request.warmup,
                steps=request.steps,
            )
            folder = root / f"{turn}-{ranks}-{grows}"
            folder.mkdir()
            try:
                with progress.running(spec.name):
                    found.append(perform(spec, folder, Path.cwd(), request.timeout, threads))
            except MeasureError as error:
                if not grows or len(request.scalings) == 1:
                    raise
                refused = str(error)
    return [run for run in found if not (run.spec.grows and refused)], refused
