"""Files and folders of this process alone, whose names tell whose they are, so that those of a killed one are swept."""

from __future__ import annotations

import functools
import os
import shutil
import socket
import tempfile
from contextvars import ContextVar
from pathlib import Path

_MARK = ".ddp_patch-"


def scratch_name() -> str:
    """A name for a file of this process that is about to be renamed."""
    return f"{_prefix()}{_host()}"


_making: ContextVar[bool] = ContextVar("making", default=False)


def make_scratch() -> str:
    """Make a folder of this process among the temporary files, which whoever calls this removes.

    Raises:
        OSError: where none can be made.
    """
    sweep(Path(tempfile.gettempdir()))
    return make_folder(prefix=f"{_prefix()}-", suffix=_host())


def make_folder(**named: str) -> str:
    """Make a folder as ``tempfile.mkdtemp`` does, for this rank alone, whatever the others do.

    Args:
        named: its arguments.

    Raises:
        OSError: where none can be made.
    """
    token = _making.set(True)
    try:
        return tempfile.mkdtemp(**named)
    finally:
        _making.reset(token)


def is_being_made() -> bool:
    """Tell whether the temporary folder that is asked for now is this package's."""
    return _making.get()


@functools.cache
def sweep(folder: Path) -> None:
    """Remove what processes that were killed have left in a folder, once."""
    for name in os.listdir(folder):
        if name.startswith(_MARK) and name.endswith(_host()):
            pid, _, start = name.removeprefix(_MARK).partition("-")[0].partition(".")
            if not pid.isdigit() or not _is_running(int(pid), start):
                left = Path(folder, name)
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink(missing_ok=True)


def _prefix() -> str:
    return f"{_MARK}{os.getpid()}.{_started(os.getpid())}"


def _host() -> str:
    return f"-{socket.gethostname()}.tmp"


def _started(pid: int) -> str:
    """When a process started, in clock ticks after the system did: process numbers come again. Empty if unknown."""
    return _stat(pid, 19)


def _stat(pid: int, field: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[field]
    except (OSError, IndexError):
        return ""


def _is_running(pid: int, start: str) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _started(pid) in (start, "") and _stat(pid, 0) != "Z"  # which its parent has not looked at
