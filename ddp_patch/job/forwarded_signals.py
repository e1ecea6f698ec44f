"""Which signals rank 0 handles: ddp_patch's agent, which a terminal or a queue signals, passes those on to it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType

from torch.distributed.elastic.multiprocessing.api import SignalException

_VARIABLE = "DDP_PATCH_HEEDED"
_PASSED_ON = ("SIGTERM", "SIGHUP", "SIGINT", "SIGUSR1", "SIGUSR2")
_OF_THE_SCRIPT = (signal.SIGUSR1, signal.SIGUSR2)  # which nobody else handles
_SAME = 5.0  # seconds, in which a copy that the agent passes on comes to a rank that was signalled itself
_TWICE = 0.5  # seconds, in which one of another launcher does
_MOST = 3  # times that Ctrl-C is pressed and not heard until the job ends


class EndedBySignal(SignalException):
    """The job is to end by a signal."""

    def __init__(self, number: int, by: signal.Signals) -> None:
        """Say so.

        Args:
            number: of the signal that came.
            by: what the ranks get.
        """
        super().__init__(f"Process {os.getpid()} got signal: {number}", sigval=by)
        self.number = number


class ForwardedSignals:
    """A file that rank 0 writes and its agent reads."""

    def __init__(self, rank: int) -> None:
        """Find it.

        Args:
            rank: of this process.
        """
        self._agents = os.environ.get(_VARIABLE)
        self._path = self._agents if rank == 0 else None
        self._passed_on: dict[int, int] = {}
        self._last: dict[int, tuple[float, bool | None]] = {}  # when each came, and whether the agent sent it

    def ignored(self) -> list[int]:
        """List the signals that nobody minded where the job was started, as ``nohup`` has it, nor the script since."""
        with contextlib.suppress(OSError, ValueError):  # no agent, or it is gone
            return list(json.loads(Path(self._agents or os.devnull).read_text())[3])
        return []

    def is_copy(self, number: int) -> bool:
        """Tell whether a signal came before: whoever signals all of a job has its launcher send each rank another one.

        Args:
            number: of the signal, which is here now.
        """
        by_agent, now = self._is_passed_on(number), time.monotonic()
        at, its = self._last.get(number, (-math.inf, None))
        if its is not None and its != by_agent and now - at < _SAME:
            self._last[number] = at, None
            return True
        if not by_agent and now - at < _TWICE:
            return True
        self._last[number] = now, by_agent
        return False

    def _is_passed_on(self, number: int) -> bool:
        """Tell whether the agent has passed on a signal to this rank since this was asked."""
        before = self._passed_on.get(number, 0)
        with contextlib.suppress(OSError):  # no agent, or it has passed on nothing
            self._passed_on[number] = json.loads(_note(self._path or "").read_text()).count(number)
        return self._passed_on.get(number, 0) > before

    def write(self, runs: int, handled: Iterable[int], ignored: Iterable[int]) -> None:
        """Say how the script listens.

        Args:
            runs: of its handlers, until now.
            handled: numbers of the signals that it handles from now on.
            ignored: of those that it lets pass.
        """
        if self._path is not None:
            with contextlib.suppress(OSError):  # the agent is gone, and this rank is about to; or the disk is full
                _put(Path(self._path), [os.getpid(), runs, [*map(int, handled)], [*map(int, ignored)]])


def _put(path: Path, content: object) -> None:
    new = Path(f"{path}.new")
    new.write_text(json.dumps(content))
    new.replace(path)


def _note(path: str) -> Path:
    """Where the agent notes what it passes on, before it does."""
    return Path(f"{path}.passed_on")


@contextlib.contextmanager
def passed_on() -> Iterator[None]:
    """Surround an agent: send to rank 0 what its script handles, and end the job by what it does not.

    Raises:
        Ended: as torch's own handler raises (torch 2.13).
    """
    with tempfile.NamedTemporaryFile(prefix="ddp_patch_heeded_") as mark:
        os.environ[_VARIABLE] = mark.name
        sent: list[int] = []  # to rank 0
        unheard: list[int] = []  # times that Ctrl-C came, each with the runs of handlers until then

        def come(number: int, frame: FrameType | None) -> None:
            pid, runs, handled, ignored = json.loads(Path(mark.name).read_text())
            if number in ignored:
                return
            if number not in handled and not (number in _OF_THE_SCRIPT and catches(pid, number)):
                raise EndedBySignal(number, signal.Signals(number))
            if number == signal.SIGINT:
                unheard[:] = [*(seen for seen in unheard if seen == runs), runs]
                if len(unheard) == _MOST:
                    raise EndedBySignal(number, signal.SIGKILL)
                if len(unheard) == _MOST - 1:
                    os.write(2, b"\nddp_patch: the script has not come to handle Ctrl-C. Once more ends it at once.\n")
            sent.append(int(number))
            _put(_note(mark.name), sent)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

        numbers = [signal.Signals[name] for name in _PASSED_ON]
        ignored = [int(number) for number in numbers if signal.getsignal(number) == signal.SIG_IGN]
        Path(mark.name).write_text(json.dumps([0, 0, [], ignored]))
        for number in numbers:
            signal.signal(number, come)
        try:
            yield
        finally:
            _note(mark.name).unlink(missing_ok=True)


def catches(pid: int, number: int) -> bool:
    """Tell whether a process handles a signal by itself, as ``faulthandler.register`` has it, in C."""
    with contextlib.suppress(OSError):  # it has ended
        status = Path(f"/proc/{pid}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
    return False
