"""Files and folders of this process alone, whose names tell whose they are, so that those of a killed one are swept."""

from __future__ import annotations

import functools
import os
import shutil
import socket
import tempfile
from pathlib import Path

_MARK = ".ddp_patch-"


def scratch_name() -> str:
    """A name for a file of this process that is about to be renamed."""
    return f"{_MARK}{os.getpid()}{_host()}"


def make_scratch() -> str:
    """Make a folder of this process among the temporary files, which whoever calls this removes.

    Raises:
        OSError: where none can be made.
    """
    _sweep_temporary()
    return tempfile.mkdtemp(prefix=f"{_MARK}{os.getpid()}-", suffix=_host())


def sweep(folder: Path) -> None:
    """Remove what processes that were killed have left in a folder."""
    for name in os.listdir(folder):
        if name.startswith(_MARK) and name.endswith(_host()):
            pid = name.removeprefix(_MARK).partition("-")[0]
            left = Path(folder, name)
            if left.is_dir():
                if not pid.isdigit() or not _is_alive(int(pid)):
                    shutil.rmtree(left, ignore_errors=True)
            elif not pid.isdigit() or int(pid) == os.getpid() or not _is_alive(int(pid)):
                # A process number that came again: what this process writes has no name yet.
                left.unlink(missing_ok=True)


@functools.cache
def _sweep_temporary() -> None:
    sweep(Path(tempfile.gettempdir()))


def _host() -> str:
    return f"-{socket.gethostname()}.tmp"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
