"""Which signals rank 0 handles: ddp_patch's agent, which a terminal or a queue signals, passes those on to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType

from torch.distributed.elastic.multiprocessing.api import SignalException

_VARIABLE = "DDP_PATCH_HEEDED"
_PASSED_ON = ("SIGTERM", "SIGHUP", "SIGINT", "SIGUSR1", "SIGUSR2")
_MOST = 3  # times that Ctrl-C is pressed and not heard until the job ends


class Ended(SignalException):
    """The job is to end by a signal."""

    def __init__(self, number: int, by: signal.Signals) -> None:
        """Say so.

        Args:
            number: of the signal that came.
            by: what the ranks get.
        """
        super().__init__(f"Process {os.getpid()} got signal: {number}", sigval=by)
        self.number = number


class Heeded:
    """A file that rank 0 writes and its agent reads."""

    def __init__(self, rank: int) -> None:
        """Find it.

        Args:
            rank: of this process.
        """
        self._path = os.environ.get(_VARIABLE) if rank == 0 else None

    def write(self, runs: int, numbers: Iterable[int]) -> None:
        """Say how the script listens.

        Args:
            runs: of its handlers, until now.
            numbers: of the signals that it handles from now on.
        """
        if self._path is not None:
            with contextlib.suppress(OSError):  # the agent is gone, and this rank is about to; or the disk is full
                new = Path(f"{self._path}.new")
                new.write_text(json.dumps([os.getpid(), runs, *map(int, numbers)]))
                new.replace(self._path)


@contextlib.contextmanager
def passed_on() -> Iterator[None]:
    """Surround an agent: send to rank 0 what its script handles, and end the job by what it does not.

    Raises:
        Ended: as torch's own handler raises (torch 2.13).
    """
    with tempfile.NamedTemporaryFile(prefix="ddp_patch_heeded_") as mark:
        os.environ[_VARIABLE] = mark.name
        unheard: list[int] = []  # times that Ctrl-C came, each with the runs of handlers until then

        def come(number: int, frame: FrameType | None) -> None:
            pid, runs, *heeded = json.loads(Path(mark.name).read_text() or "[0, 0]")
            if number not in heeded:
                raise Ended(number, signal.Signals(number))
            if number == signal.SIGINT:
                unheard[:] = [*(seen for seen in unheard if seen == runs), runs]
                if len(unheard) == _MOST:
                    raise Ended(number, signal.SIGKILL)
                if len(unheard) == _MOST - 1:
                    os.write(2, b"\nddp_patch: the script has not come to handle Ctrl-C. Once more ends it at once.\n")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

        for name in _PASSED_ON:
            signal.signal(signal.Signals[name], come)
        yield
