"""Which files this process has open, or a child of it, as the system tells (Linux)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SYSTEM = Path("/proc")


def is_written_to(path: str) -> bool:
    """Tell whether a file may be written to yet: something has a descriptor of it for that, or a map of it."""
    try:
        wanted = os.stat(path)
    except FileNotFoundError:
        return False
    if not (_SYSTEM / "self/fd").is_dir():  # nobody can tell
        return True
    return any(_is(wanted, process, descriptor) for process in _family() for descriptor in _listed(process / "fd"))


def path_of(file: Any) -> str | None:
    """Give the path of an open file, or of its descriptor; None where nobody can tell."""
    with contextlib.suppress(OSError, ValueError):
        return os.readlink(_SYSTEM / f"self/fd/{file if isinstance(file, int) else file.fileno()}")
    return None


def _family() -> Iterator[Path]:
    """List this process, its children, and theirs."""
    processes = [_SYSTEM / "self"]
    for process in processes:  # which grows
        yield process
        for task in _listed(process / "task"):
            with contextlib.suppress(OSError):  # it has ended
                processes += [_SYSTEM / pid for pid in (process / "task" / task / "children").read_text().split()]


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # it has ended, or belongs to somebody else
        return []


def _is(wanted: os.stat_result, process: Path, descriptor: str) -> bool:
    try:
        if not os.path.samestat(os.stat(process / "fd" / descriptor), wanted):
            return False
        fields = (process / "fdinfo" / descriptor).read_text().split()
    except OSError:  # closed meanwhile
        return False
    return int(fields[fields.index("flags:") + 1], 8) & os.O_ACCMODE != os.O_RDONLY
