"""Run a command, and leave no process of it behind; nor touch one that is not of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MARK = "DDP_PATCH_VERIFY_RUN"  # in the environment of every process of a run, by which they are found
_GRACE = 5.0  # seconds in which processes that are asked to end may do so


@dataclass(frozen=True)
class ProcessResult:
    """How a command ended."""

    code: int  # of its process; negative if a signal ended it
    seconds: float
    is_late: bool  # it was ended from here, since its time was over


def run(
    command: Sequence[str], folder: Path, environ: dict[str, str], logs: Path | None, timeout: float | None
) -> ProcessResult:
    """Run a command and wait for it.

    Args:
        command: with its arguments.
        folder: to run in.
        environ: all of its environment.
        logs: folder that gets its output, in files ``stdout`` and ``stderr``; None: it goes where ours does.
        timeout: seconds after which all of its processes are ended.
    """
    mark = uuid.uuid4().hex
    begin = time.monotonic()
    with contextlib.ExitStack() as stack:
        names = () if logs is None else (logs / "stdout", logs / "stderr")
        out, err = [stack.enter_context(name.open("wb")) for name in names] or (None, None)
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**environ, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,  # Ctrl-C is for us, who then end it
        )
        is_late = False
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            is_late = True
        finally:
            _end(process, mark)
    return ProcessResult(process.returncode, time.monotonic() - begin, is_late)


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """End what is left of a run: asked first, then killed. A launcher that is asked ends its ranks."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        end = time.monotonic() + _GRACE
        left = _left(process, mark)
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        while left and time.monotonic() < end:
            time.sleep(0.02)
            left = _left(process, mark)
        if not left:
            return


def _left(process: subprocess.Popen[bytes], mark: str) -> list[int]:
    running = [process.pid] if process.poll() is None else []
    return sorted({*running, *_marked(mark)})


def _marked(mark: str) -> list[int]:
    """Find processes by their environment, where the system tells (Linux): ranks have sessions of their own."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found
