"""Ctrl-C while the script asks its user: it is meant for the question, not for the job.

torch's agent starts every rank in a session of its own, so that the terminal sends its signals to the agent alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from torch.distributed.elastic.multiprocessing.api import SignalException

_VARIABLE = "DDP_PATCH_ASKING"


@contextlib.contextmanager
def asking() -> Iterator[None]:
    """Have this rank interrupted by Ctrl-C, and nothing else, for a while."""
    path = os.environ.get(_VARIABLE)
    if path is None:  # another launcher, which ends the job
        yield
        return
    Path(path).write_text(str(os.getpid()))
    try:
        yield
    finally:
        Path(path).write_text("")


@contextlib.contextmanager
def passed_on() -> Iterator[None]:
    """Surround an agent: send Ctrl-C to the rank that asks, or end the job where none does.

    Raises:
        SignalException: as torch's own handler (torch 2.13).
    """
    with tempfile.NamedTemporaryFile(prefix="ddp_patch_asking_") as mark:
        os.environ[_VARIABLE] = mark.name

        def interrupt(number: int, frame: FrameType | None) -> None:
            asks = Path(mark.name).read_text()
            if not asks:
                raise SignalException(f"Process {os.getpid()} got signal: {number}", sigval=signal.Signals(number))
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(asks), number)

        signal.signal(signal.SIGINT, interrupt)
        yield
