"""One text to another: what ``migrate`` does to a script or a cell-marked notebook."""

from __future__ import annotations

import re
from pathlib import Path

from .distribute import distribute
from .line import add_line
from .plain import calls_one_of, is_distributed, plain
from .script import MARK
from .tree import lines_of

_OTHERS = {
    "horovod": "Horovod", "deepspeed": "DeepSpeed", "lightning": "Lightning", "pytorch_lightning": "Lightning",
    "ignite": "Ignite", "ray.train": "Ray Train",
}  # fmt: skip
_IMPORT = re.compile(r"^\s*(?:import|from)\s+([\w.]+)", re.M)
_MARKERS = {
    "ddp": {"init_process_group", "DistributedDataParallel", "init_distributed_mode"},
    "accelerate": {"Accelerator"},
}

# Neither torchrun's variables nor torch's own reading of them.
_BY_ARGUMENTS = re.compile(r"^([ \t]*).*\binit_process_group\((?:[^()]|\([^()]*\))*\brank\s*=", re.M)
_ASK = (
    "this script distributes itself, by arguments of its own: torchrun tells each process through RANK, LOCAL_RANK and "
    "WORLD_SIZE; read those, or start it as it was"
)


def others(text: str) -> str | None:
    """Name the library that distributes a script, if none of ours does."""
    for name in _IMPORT.findall(text):
        for module, title in _OTHERS.items():
            if name == module or name.startswith(f"{module}."):
                return title
    return None


def rewrite(text: str, target: str, name: str, per_device: bool = False, folder: Path | None = None) -> str:
    """Give a script's text after its migration; what is left to a person stands in it as ``# TODO(ddp): ...``.

    Raises:
        SyntaxError: for a text that is not Python.
    """
    if target == "patch":
        if is_distributed(text) and not re.search(r"^import ddp_patch", text, re.M):
            text, _ = plain(text)
        return add_line(text, folder)
    if is_done(text, target):
        return _by_arguments(text) if target == "ddp" else text
    single = plain(text)[0] if is_distributed(text) else text
    after, _ = distribute(single, target, name, per_device, folder)
    return text if after == single else after


def is_done(text: str, target: str) -> bool:
    """Tell whether a script is what it is to become."""
    return calls_one_of(text, _MARKERS[target])


def _by_arguments(text: str) -> str:
    """Leave a script that is DDP already, and say so where torchrun would start it several times over."""
    found = _BY_ARGUMENTS.search(text)
    if found is None or "RANK" in text:  # of the environment, or the note
        return text
    return f"{text[: found.start()]}{found[1]}{MARK}{_ASK}\n{text[found.start() :]}"


def left(text: str) -> list[tuple[int, str]]:
    """List the notes in a migrated text: line and reason."""
    return [
        (number, line.split(MARK, 1)[1].strip())
        for number, line in enumerate(lines_of(text), start=1)
        if MARK in line and line.lstrip().startswith("#")
    ]
