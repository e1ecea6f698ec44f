"""What a run did, read from its records."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .printed import PrintedLine
from .run_folder import LEFT_OUT
from .runs import FinishedRun, events
from .tolerance import least_precise


@dataclass(frozen=True)
class Loss:
    """One that was back-propagated."""

    step: int
    line: str
    value: float
    age: int  # steps or backwards before it: what rounding grows with


@dataclass(frozen=True)
class ObservedStep:
    """One step of an optimizer."""

    step: int
    line: str
    number: int  # of the optimizer
    norm: float | None  # of the gradient
    norms: list[float | None]  # of each parameter's
    rates: list[float]
    buffers: dict[str, float]
    evaluating: int  # layers in evaluation mode that do otherwise in training
    age: int


@dataclass(frozen=True)
class WeightNorms:
    """Weights of a script that updates them itself, before a backward and at the end."""

    step: int
    line: str  # of the backward; empty at the end
    norms: dict[str, float]
    age: int


@dataclass
class Observed:
    """One run, as one rank saw it."""

    name: str
    code: int
    is_late: bool
    seconds: float
    stdout: str
    stderr: str
    how: str = ""  # it ended: "end", "exit", "enough", "error"; empty if it could not say
    exit_code: int = 0
    error: str = ""
    age: int = 0
    losses: list[Loss] = field(default_factory=list)
    steps: list[ObservedStep] = field(default_factory=list)
    weight_norms: list[WeightNorms] = field(default_factory=list)
    optimizers: list[dict[str, Any]] = field(default_factory=list)
    out: list[PrintedLine] = field(default_factory=list)
    err: list[PrintedLine] = field(default_factory=list)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    others: list[dict[str, torch.Tensor]] = field(default_factory=list)  # the same, of the other ranks
    folder: Path = field(default_factory=Path)
    files: list[str] = field(default_factory=list)
    left_out: set[str] = field(default_factory=set)  # files and folders that it wrote, of which no two runs are alike
    notes: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # other events, by kind
    dtypes: set[str] = field(default_factory=set)

    @property
    def failed(self) -> bool:
        """Whether it did not come to an end of its own."""
        return self.is_late or self.how in ("", "error")

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compare."""
        return self.gave_up or not (self.losses or self.steps or self.out or self.err or self.files or self.tensors)

    @property
    def gave_up(self) -> bool:
        """Whether it left with an error code before it trained or wrote anything, as argparse does."""
        return self.how == "exit" and self.exit_code != 0 and not (self.losses or self.steps or self.files)

    @property
    def step_count(self) -> int:
        """Optimizer steps; without an optimizer, backwards."""
        return len(self.steps) or (len(self.losses) if self.weight_norms else 0)

    @property
    def dtype(self) -> str:
        """What tolerances follow from."""
        return least_precise(self.dtypes)


def observe(done: FinishedRun, rank: int = 0) -> Observed:
    """Read what a rank of a run noted."""
    seen = Observed(done.spec.name, done.ended.code, done.ended.is_late, done.ended.seconds, done.stdout, done.stderr)
    seen.folder = done.place.folder
    for name in done.place.written():
        left_out = _left_out(seen.folder, name)
        if left_out:
            seen.left_out.add(left_out)
        else:
            seen.files.append(name)
    prefix = str(done.place.folder.parents[len(done.place.folder.relative_to(done.records.parent / "place").parts) - 1])
    for event in events(done.records, rank):
        _take(seen, event, prefix)
    if not done.spec.is_local:
        _take_the_rest(seen, prefix)
    seen.tensors = _tensors(done.records / f"tensors.{rank}")
    if rank == 0:
        seen.others = [_tensors(done.records / f"tensors.{other}") for other in range(1, done.spec.nproc)]
    seen.dtypes |= {str(t.dtype).removeprefix("torch.") for t in seen.tensors.values() if t.is_floating_point()}
    return seen


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    data = path.read_bytes() if path.exists() else b""
    tensors: dict[str, torch.Tensor] = torch.load(io.BytesIO(data), weights_only=True) if data else {}
    return tensors


def _take(seen: Observed, event: dict[str, Any], prefix: str) -> None:
    kind, step = event["kind"], event["step"]
    if kind == "loss":
        seen.losses.append(Loss(step, event["line"], event["value"], event["age"]))
        seen.dtypes.add(event["dtype"])
    elif kind == "step":
        values = (event["norm"], event["norms"], event["rates"], event.get("buffers", {}), event["evaluating"])
        seen.steps.append(ObservedStep(step, event["line"], event["number"], *values, event["age"]))
    elif kind == "weights":
        seen.weight_norms.append(WeightNorms(step, event["line"], event["norms"], event["age"]))
    elif kind == "optimizer":
        seen.optimizers.append(event)
        seen.dtypes.update(event["dtypes"])
    elif kind == "text":
        said = PrintedLine(event["text"].replace(prefix, ""), event["line"], step, event["age"])
        (seen.out if event["stream"] == "out" else seen.err).append(said)
    elif kind == "end":
        seen.age = event["age"]
        seen.how, seen.exit_code, seen.error = event["how"], event["code"], event["error"]
    else:
        seen.notes.setdefault(kind, []).append(event)


def _take_the_rest(seen: Observed, prefix: str) -> None:
    """Add what others have printed than the script's Python: its commands, and code in C."""
    noted = Counter(said.text for said in seen.out)
    for text in seen.stdout.replace(prefix, "").split("\n"):
        shown = text.rpartition("\r")[2]
        if noted[shown]:
            noted[shown] -= 1
        elif shown:
            seen.out.append(PrintedLine(shown, "", seen.step_count, seen.age))


def _left_out(folder: Path, name: str) -> str:
    """Name the file, or the folder that it is in, if it is of a tool's; empty if it is compared."""
    *folders, base = name.split("/")
    for depth, part in enumerate(folders, 1):
        if part in LEFT_OUT or part == ".cache" or name.startswith("wandb/"):
            return "/".join([*folders[:depth], ""])
    is_lock = base.endswith(".lock") and not (folder / name).stat().st_size
    return name if is_lock or base.endswith(".pyc") else ""
