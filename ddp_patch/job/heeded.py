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
_OF_THE_SCRIPT = (signal.SIGUSR1, signal.SIGUSR2)  # which nobody else handles
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
        self._agents = os.environ.get(_VARIABLE)
        self._path = self._agents if rank == 0 else None

    def ignored(self) -> list[int]:
        """List the signals that nobody minded where the job was started, as ``nohup`` has it, nor the script since."""
        with contextlib.suppress(OSError, ValueError):  # no agent, or it is gone
            return list(json.loads(Path(self._agents or os.devnull).read_text())[3])
        return []

    def write(self, runs: int, handled: Iterable[int], ignored: Iterable[int]) -> None:
        """Say how the script listens.

        Args:
            runs: of its handlers, until now.
            handled: numbers of the signals that it handles from now on.
            ignored: of those that it lets pass.
        """
        if self._path is not None:
            with contextlib.suppress(OSError):  # the agent is gone, and this rank is about to; or the disk is full
                new = Path(f"{self._path}.new")
                new.write_text(json.dumps([os.getpid(), runs, [*map(int, handled)], [*map(int, ignored)]]))
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
            pid, runs, handled, ignored = json.loads(Path(mark.name).read_text())
            if number in ignored:
                return
            if number not in handled and not (number in _OF_THE_SCRIPT and catches(pid, number)):
                raise Ended(number, signal.Signals(number))
            if number == signal.SIGINT:
                unheard[:] = [*(seen for seen in unheard if seen == runs), runs]
                if len(unheard) == _MOST:
                    raise Ended(number, signal.SIGKILL)
                if len(unheard) == _MOST - 1:
                    os.write(2, b"\nddp_patch: the script has not come to handle Ctrl-C. Once more ends it at once.\n")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

        numbers = [signal.Signals[name] for name in _PASSED_ON]
        ignored = [int(number) for number in numbers if signal.getsignal(number) == signal.SIG_IGN]
        Path(mark.name).write_text(json.dumps([0, 0, [], ignored]))
        for number in numbers:
            signal.signal(number, come)
        yield


def catches(pid: int, number: int) -> bool:
    """Tell whether a process handles a signal by itself, as ``faulthandler.register`` has it, in C."""
    with contextlib.suppress(OSError):  # it has ended
        status = Path(f"/proc/{pid}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
    return False
