"""One measured run of a script on so many ranks, in a copy of the working folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..job.hosts import accelerator_count
from ..job.relaunch import agent, package_module
from ..verify import process
from ..verify.arguments import enables
from ..verify.process import ProcessResult
from ..verify.run_folder import prepare
from ..verify.runs import events, scratch
from .wanted import PROFILED, Wanted

Start = Callable[[list[str], Path, dict[str, str], "Path | None", "float | None"], ProcessResult]
_SHOWN = 12  # lines of what a script that failed wrote
_LEAST_WARM, _LEAST_STEPS = 3, 2  # that are proposed where a script takes few steps
_CHOOSING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class MeasureError(RuntimeError):
    """A script could not be measured; says the line to write."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What to run."""

    script: Path
    args: tuple[str, ...] = ()
    module: str = ""  # the script's name, where it is run as ``python -m package.train``
    ranks: int = 1
    grows: bool = False  # the batch, with the ranks
    warmup: int
    steps: int
    traced: int = 0
    goes_on: bool = False

    @property
    def name(self) -> str:
        """In words."""
        where = "alone" if self.ranks == 1 else f"on {self.ranks} ranks"
        return f"{self.script.name} {where}{', the batch grows' if self.grows else ''}"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a run gave. Seconds of a step are the mean over its ranks: who is late makes others wait then or next."""

    spec: Spec
    steps: list[dict[str, float]]  # total, loading, waiting, effects, optimizer, backward, rows and backwards of each
    python: float  # seconds of a step that ddp_patch's own Python takes
    facts: dict[str, Any]
    network: dict[str, float]  # seconds of all-reduces of few and of many bytes; nothing on one rank
    by_rank: list[list[dict[str, Any]]] = field(default_factory=list)  # what each rank noted
    records: Path = Path()  # folder of what they left


def perform(
    spec: Spec,
    root: Path,
    working: Path,
    timeout: float,
    threads: int,
    *,
    start: Start = process.run,
    shows: bool = False,
) -> Measured:
    """Run a script, and read what its ranks have noted.

    Args:
        spec: what to run.
        root: a new folder for it.
        working: the user's working folder, which is copied.
        timeout: in seconds.
        threads: of torch, for each process.
        start: runs the command.
        shows: what the script writes goes where ours does.

    Raises:
        MeasureError: if it fails, ends too early or is not done in time.
    """
    place = prepare(root / "place", working, spec.script)
    records, logs = root / "records", root / "logs"
    for folder in (records, logs):
        folder.mkdir()
    wanted = Wanted(
        record=str(records),
        folder=str(place.folder),
        enable=not enables(spec.script),
        warmup=spec.warmup,
        steps=spec.steps,
        traced=spec.traced,
        goes_on=spec.goes_on,
        linked=place.linked,
    )
    wanted.write(root / "wanted.json")
    target = ["-m", spec.module] if spec.module else [str(place.script)]
    command = [*package_module("ddp_patch.measure.measured"), str(root / "wanted.json"), *target, *spec.args]
    if spec.ranks > 1:
        command = [*agent(), str(spec.ranks), *command]
    with scratch() as temporary:
        environ = _environ(spec, threads, temporary, is_quiet=not shows)
        ended = start(command, place.folder, environ, None if shows else logs, timeout)
    place.check()
    by_rank = [events(records, rank) for rank in range(spec.ranks)]
    _refuse(spec, ended, by_rank, timeout, _tail(logs))
    return _together(spec, by_rank, records)


def _environ(spec: Spec, threads: int, temporary: str, is_quiet: bool) -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
    environ.pop("DDP_PATCH_NPROC", None)
    environ.setdefault("PYTHONHASHSEED", "0")
    environ.setdefault("OMP_NUM_THREADS", str(threads))
    environ["PYTHONDONTWRITEBYTECODE"] = "1"
    environ["TMPDIR"] = temporary
    if is_quiet:
        environ["DDP_PATCH_QUIET"] = "1"
    if spec.ranks == 1:
        environ["DDP_PATCH_NPROC"] = "1"
        environ.update(_one_device(environ))
    if spec.grows:
        environ["DDP_PATCH_BATCH"] = "per_device"
    # Found from the run's folder as from here.
    entries = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    environ["PYTHONPATH"] = os.pathsep.join([*map(os.path.abspath, entries), str(Path(__file__).parents[2])])
    return environ


def _one_device(environ: Mapping[str, str]) -> dict[str, str]:
    """Leave one accelerator visible: nn.DataParallel, and transformers' Trainer with it, take all that are."""
    if accelerator_count() < 2:
        return {}
    chosen = {name: environ[name] for name in _CHOOSING if environ.get(name)} or {_CHOOSING[0]: "0"}
    return {name: devices.partition(",")[0].strip() for name, devices in chosen.items()}


def _refuse(spec: Spec, ended: ProcessResult, by_rank: list[list[dict[str, Any]]], timeout: float, said: str) -> None:
    """Say why there is nothing to read."""
    lasts = [noted_of(noted, "end") for noted in by_rank]
    taken = min((its[-1]["taken"] if its else 0) for its in lasts)
    if ended.is_late:
        raise MeasureError(f"{spec.name} was not done after {timeout:g} seconds. Write a longer --timeout{said}")
    if ended.code or any(its and its[-1]["how"] == "error" for its in lasts):
        raise MeasureError(f"{spec.name} failed (exit code {ended.code}). Run it by itself until it does not{said}")
    if not all(noted_of(noted, "facts") for noted in by_rank):
        if taken == 0:
            raise MeasureError(
                f"{spec.name} ended without two steps of an optimizer, and a step is what is measured. Name the script "
                "that trains, with the arguments with which it does"
            )
        further = spec.traced + PROFILED + 2
        room = taken + 1 - further - _LEAST_WARM
        instead = f", or write --warmup {_LEAST_WARM} --steps {min(room, spec.steps)}" if room >= _LEAST_STEPS else ""
        raise MeasureError(
            f"{spec.name} ended after {taken + 1} steps, and {spec.warmup} to warm up and {spec.steps} to measure need "
            f"some {spec.warmup + spec.steps + further}. Let it train longer{instead}"
        )


def _together(spec: Spec, by_rank: list[list[dict[str, Any]]], records: Path) -> Measured:
    noted = [noted_of(its, "took") for its in by_rank]
    names = [name for name in noted[0][0] if name not in ("kind", "step", "age")]
    steps = [{name: sum(its[name] for its in each) / len(each) for name in names} for each in zip(*noted, strict=False)]
    python = [its["seconds"] for noted in by_rank for its in noted_of(noted, "python") if its["seconds"] is not None]
    network = noted_of(by_rank[0], "network")
    facts = {
        name: value for name, value in noted_of(by_rank[0], "facts")[0].items() if name not in ("kind", "step", "age")
    }
    return Measured(
        spec=spec,
        steps=steps,
        python=sum(python) / len(python) if python else 0.0,
        facts=facts,
        network={name: network[0][name] for name in ("few", "many")} if network else {},
        by_rank=by_rank,
        records=records,
    )


def noted_of(noted: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Give what a rank noted of one kind, in its order."""
    return [its for its in noted if its["kind"] == kind]


def _tail(logs: Path) -> str:
    """The last lines that the script wrote, for a message."""
    texts = [
        path.read_text("utf-8", "replace").strip() for name in ("stderr", "stdout") if (path := logs / name).exists()
    ]
    lines = next((text.splitlines()[-_SHOWN:] for text in texts if text), [])
    return "".join(f"\n  | {line}" for line in lines)
