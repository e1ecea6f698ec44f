"""One run of a script: alone, under ddp_patch on N ranks, or on N ranks that see their own rows."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..job.relaunch import agent, package_module
from . import process
from .inside.settings import Settings
from .process import ProcessResult
from .run_folder import RunFolder, prepare

Launcher = Literal["plain", "ddp_patch", "torchrun", "accelerate"]


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What to run, and how."""

    script: Path
    module: str = ""  # the script's name, where it is run as ``python -m package.train``
    args: tuple[str, ...] = ()
    launcher: Launcher = "plain"
    nproc: int = 1
    has_line: bool = False  # the script enables ddp_patch itself
    steps: int | None = None
    still: bool = False
    float64: bool = False
    is_local: bool = False  # the ranks see their own rows
    batches: str = ""  # JSON, for the loaders of a script that is compared to a rank-local one

    @property
    def name(self) -> str:
        """In words."""
        how = {"plain": "alone", "ddp_patch": f"{self.nproc} ranks"}.get(self.launcher, "")
        how = how or f"{self.nproc} ranks of {self.launcher}"
        modes = [*(["draws held still"] if self.still else []), *(["float64"] if self.float64 else [])]
        return f"{how} ({', '.join(modes)})" if modes else how


@dataclass(frozen=True)
class FinishedRun:
    """A run that has ended."""

    spec: Spec
    ended: ProcessResult
    place: RunFolder
    records: Path  # folder of the ranks' records
    stdout: str
    stderr: str


Start = Callable[[list[str], Path, dict[str, str], Path, "float | None"], ProcessResult]


def perform(
    spec: Spec,
    root: Path,
    working: Path,
    timeout: float | None,
    threads: int,
    start: Start = process.run,
    changed: Collection[str] = (),
) -> FinishedRun:
    """Run a script in a folder of its own.

    Args:
        spec: what to run.
        root: a new folder for it.
        working: the user's working folder, which is copied.
        timeout: in seconds.
        threads: of torch, for each process: alike in all runs, since sums depend on it.
        start: runs the command.
        changed: files that a run before has changed.
    """
    place = prepare(root / "place", working, spec.script, changed)
    records, logs = root / "records", root / "logs"
    records.mkdir()
    logs.mkdir()
    batches = ""
    if spec.batches:
        batches = str(root / "batches.json")
        Path(batches).write_text(spec.batches, encoding="utf-8")
    settings = Settings(
        record=str(records),
        folder=str(place.folder),
        enable=spec.launcher == "ddp_patch" and not spec.has_line,
        alone=spec.nproc == 1,
        steps=spec.steps,
        still=spec.still,
        float64=spec.float64,
        local=spec.is_local,
        batches=batches,
        linked=place.linked,
        kept=place.kept,
    )
    settings.write(root / "settings.json")
    target = ["-m", spec.module] if spec.module else [str(place.script)]
    program = [*package_module("ddp_patch.verify.recorded"), str(root / "settings.json"), *target]
    with scratch() as temporary:
        command = [*_launched(spec), *program, *spec.args]
        ended = start(command, place.folder, _environ(spec, threads, temporary), logs, timeout)
    place.check()
    return FinishedRun(spec, ended, place, records, _read(logs / "stdout"), _read(logs / "stderr"))


def _launched(spec: Spec) -> list[str]:
    python, count = sys.executable, str(spec.nproc)
    if spec.launcher == "ddp_patch":
        return [*agent(), count]
    if spec.launcher == "torchrun":
        return [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}", "--no-python"]
    if spec.launcher == "accelerate":
        options = ["--multi_gpu", "--num_processes", count, "--num_machines", "1", "--mixed_precision", "no"]
        options += ["--dynamo_backend", "no", "--main_process_port", "0", "--no_python"]
        return [python, "-m", "accelerate.commands.launch", *options]
    return []


def scratch() -> tempfile.TemporaryDirectory[str]:
    """Make a folder for what a run's launcher and workers leave in TMPDIR, which goes with it.

    Right below the temporary folder, wherever the run is: a path to a socket has 107 characters, and torch's workers
    make theirs there.
    """
    return tempfile.TemporaryDirectory(prefix="ddp_patch_", ignore_cleanup_errors=True)


def _environ(spec: Spec, threads: int, temporary: str) -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
    environ.setdefault("PYTHONHASHSEED", "0")  # the order of sets of strings, which ddp_patch has agreed on as well
    environ.setdefault("OMP_NUM_THREADS", str(threads))
    environ["PYTHONDONTWRITEBYTECODE"] = "1"
    environ["DDP_PATCH_QUIET"] = "1"  # what is said on standard error is compared
    environ["TMPDIR"] = temporary
    # Found from the run's folder as from here.
    entries = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    package = str(Path(__file__).parents[2])
    environ["PYTHONPATH"] = os.pathsep.join([*map(os.path.abspath, entries), package])
    if spec.nproc == 1:
        environ["DDP_PATCH_NPROC"] = "1"
    else:
        environ.pop("DDP_PATCH_NPROC", None)
        if spec.launcher == "ddp_patch":
            environ.setdefault("DDP_PATCH_SHARE_DEVICES", "1")
    return environ


def _read(path: Path) -> str:
    # Not read_text, which takes the \r of progress bars for the end of a line.
    return path.read_bytes().decode("utf-8", "replace") if path.exists() else ""


def events(folder: Path, rank: int) -> list[dict[str, Any]]:
    """Read what a rank noted; a line that was cut off, as its process was killed, is left out."""
    path = folder / f"events.{rank}"
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line]
