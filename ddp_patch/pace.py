"""Where the time of a step goes on this rank: its clock is read twice for each batch, collective and effect."""

from __future__ import annotations

import cProfile
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from types import CodeType
from typing import Any

KINDS = ("loading", "waiting", "effects", "optimizer")
_PACKAGE = str(Path(__file__).parent)
_LEFT_OUT = 3  # steps, in which modules are observed and accumulation is learned
_KEPT = 512  # steps
_PROFILED = range(10, 14)  # behind which steps Python's own profiler runs for one more, where a report was asked for
_FEWEST = 8  # steps that tell something
_TRIED, _ROUNDS = 200, 5  # calls, and how often


@dataclass(frozen=True)
class StepTime:
    """Means over the middle half of the last steps, by how long they took; in seconds."""

    steps: int  # that these were chosen from
    made: int  # of all optimizers, until now
    profiled: int  # of these, left out since Python's profiler ran in them
    total: float
    loading: float  # in a loader's ``next``
    waiting: float  # in collectives, and at the end of backwards until all gradients have come
    effects: float  # in what happens once: files, folders, commands
    optimizer: float  # in the optimizer's step
    python: float | None  # of ddp_patch; None if it was not measured
    first: int = _LEFT_OUT  # steps that are left out

    @property
    def computing(self) -> float:
        """What is left: forward, backward, the script's own code, and ddp_patch's Python."""
        return max(self.total - self.loading - self.waiting - self.effects - self.optimizer, 0.0)


class Pace:
    """Clocks the steps of the script's thread."""

    def __init__(self) -> None:
        """Start before the first step."""
        self._thread = threading.get_ident()
        self._steps: deque[tuple[float, ...]] = deque(maxlen=_KEPT)
        self._spent = dict.fromkeys(KINDS, 0.0)
        self._is_inside = False
        self._since: float | None = None
        self._stepping: float | None = None
        self._count = self._profiled = 0
        self._profile: Any = None
        self._python: list[float] = []  # of the steps that were profiled
        self.heard: Callable[[float, dict[str, float]], None] | None = None
        """Gets the seconds of each step, and what of them went to which kind, as soon as it is over."""

    def begin(self) -> float | None:
        """Begin to wait, or to load; None inside of something that is clocked, and in other threads."""
        if self._is_inside or threading.get_ident() != self._thread:
            return None
        self._is_inside = True
        return perf_counter()

    def end(self, kind: str, began: float | None) -> None:
        """Come back from it.

        Args:
            kind: one of ``KINDS``.
            began: what ``begin`` gave.
        """
        if began is not None:
            self._is_inside = False
            self._spent[kind] += perf_counter() - began

    def steps(self) -> None:
        """An optimizer begins to step."""
        self._stepping = perf_counter() - sum(self._spent.values())  # what it waits for meanwhile is not its own

    def stepped(self, profiles: bool) -> None:
        """An optimizer has stepped.

        Args:
            profiles: have Python's profiler measure some of the steps.
        """
        now, self._count = perf_counter(), self._count + 1
        if self._stepping is not None:
            self._spent["optimizer"] += now - self._stepping - sum(self._spent.values())
            self._stepping = None
        since, spent = self._since, self._spent
        self._spent = dict.fromkeys(KINDS, 0.0)
        self._profiled += self._profile is not None
        if since is not None and self._count > _LEFT_OUT and self._profile is None:
            self._steps.append((now - since, *spent.values()))
        if since is not None and self.heard is not None:
            self.heard(now - since, spent)
        if self._profile is not None and self._count - 1 in _PROFILED:
            self._python.append(self.profiled(1) or 0.0)
        if profiles and self._count in _PROFILED:
            self.profile()
        self._since = perf_counter()

    def summary(self) -> StepTime | None:
        """Give what a step takes; None before there were some."""
        if len(self._steps) < _FEWEST:
            return None
        quarter = len(self._steps) // 4
        middle = sorted(self._steps)[quarter : len(self._steps) - quarter]
        columns = zip(("total", *KINDS), zip(*middle, strict=True), strict=True)
        means = {name: sum(column) / len(middle) for name, column in columns}
        made = {"steps": len(self._steps), "made": self._count, "profiled": self._profiled}
        # One of them may hold an evaluation, and what is found out in its first call.
        python = sorted(self._python)[1:-1] if len(self._python) == len(_PROFILED) else []
        return StepTime(**made, python=sum(python) / len(python) if python else None, **means)

    def profile(self) -> None:
        """Begin to profile Python, unless somebody else does."""
        profile = cProfile.Profile()
        with suppress(ValueError):  # the script profiles itself
            if sys.getprofile() is None:
                profile.enable()
                self._profile = profile

    def profiled(self, steps: int) -> float | None:
        """End it; gives the seconds of each of so many steps that went to ddp_patch's own Python."""
        if self._profile is None:
            return None
        self._profile.disable()
        calls, seconds = _of_ours(self._profile.getstats())
        self._profile = None
        return max(seconds - calls * _cost_of_profiling(), 0.0) / steps


def _of_ours(entries: list[Any]) -> tuple[int, float]:
    """Count the calls of our functions and of what these call in C, but for what waits; and their seconds."""
    calls, seconds = 0, 0.0
    for entry in entries:
        if isinstance(entry.code, CodeType) and entry.code.co_filename.startswith(_PACKAGE):
            called = [sub for sub in entry.calls or () if isinstance(sub.code, str) and not _waits(sub.code)]
            calls += entry.callcount + sum(sub.callcount for sub in called)
            seconds += entry.inlinetime + sum(sub.inlinetime for sub in called)
    return calls, seconds


def _waits(name: str) -> bool:
    return any(word in name for word in ("run_backward", "wait", "acquire", "queue", "c10d"))


def _cost_of_profiling() -> float:
    """Seconds by which the profiler makes a call longer."""

    def called() -> None:
        pass

    def seconds() -> float:
        """The least of several times: between two steps of this loop another process may have the core."""
        times = []
        for _ in range(_ROUNDS):
            began = perf_counter()
            for _ in range(_TRIED):
                called()
            times.append(perf_counter() - began)
        return min(times)

    plain, profile = seconds(), cProfile.Profile()
    profile.enable()
    profiled = seconds()
    profile.disable()
    return max(profiled - plain, 0.0) / _TRIED
