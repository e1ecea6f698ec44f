"""Which value of an option is tried in which step, and which one is taken: arithmetic alone, the same on every rank.

The values of an option are tried one after the other and back again, so that what changes slowly, as a processor's
clock does, is the same for all. Of each visit the first steps are left out: DDP orders its buckets in them.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from ..option_forms import AUTO
from ..options import Options

LEFT_OUT = 3  # first steps of a model: modules are observed, accumulation is learned
_WARM, _TIMED = 2, 3  # steps of a visit
_GAIN = 1.05  # times as fast a value has to be to be taken instead of the default
_CAPS = (1.0, 5.0, 100.0)  # MiB, beside DDP's own (Li et al. 2020, https://arxiv.org/abs/2006.15704, figures 7 and 8)
_FIRST = 1.0  # MiB of DDP's first bucket by default (torch 2.13)
_MIB = 2**20
DEFAULTS: dict[str, Any] = {"bucket_cap_mb": 25.0, "gradient_as_bucket_view": False, "comm_hook": None}
HOOKS = (None, "bf16", "fp16", "powersgd")


@dataclasses.dataclass(frozen=True, eq=False)
class Built:
    """What a DDP is built with."""

    options: Options
    powersgd_after: int | None = None  # iterations, while it is tried; None for torch's default


def values_of(name: str, size: int) -> tuple[Any, ...]:
    """Give the values of an option that are worth trying, the default first.

    Args:
        name: of the option.
        size: of the gradients, in bytes.
    """
    if name == "comm_hook":
        return HOOKS
    if name == "gradient_as_bucket_view":
        return (False, True)
    if size <= _FIRST * _MIB:
        return (25.0,)  # one bucket, whatever its size
    smaller = [cap for cap in _CAPS if cap * _MIB < size]
    whole = [cap for cap in _CAPS if cap * _MIB >= size][:1]  # one bucket
    return (25.0, *smaller, *whole)


class OptionTrial:
    """What is tried for one model."""

    def __init__(self, options: Options, size: int) -> None:
        """Begin with the defaults.

        Args:
            options: of the session.
            size: of the model's gradients, in bytes.
        """
        self._size = size
        self._left = [name for name in DEFAULTS if getattr(options, name) == AUTO]
        chosen = {name: DEFAULTS[name] for name in self._left}
        self.built = Built(dataclasses.replace(options, **chosen))
        self.name: str | None = None  # of the option that is tried
        self.values: tuple[Any, ...] = ()
        self._visits: list[int] = []  # values that are still to be visited
        self._times: list[list[float]] = []
        self._steps = 0
        self._before = LEFT_OUT

    @property
    def is_over(self) -> bool:
        """Whether every option has its value."""
        return self.name is None and not self._left

    @property
    def length(self) -> int:
        """How many steps of an option are still to come."""
        return len(self._visits) * (_WARM + _TIMED) - self._steps

    def next_option(self) -> str | None:
        """Give the option that is to be tried next, once the first steps are over."""
        return self._left[0] if self.name is None and self._before <= 0 and self._left else None

    def begin(self) -> bool:
        """Begin to try the next option; tell whether it has several values."""
        name = self._left.pop(0)
        self.values = values_of(name, self._size)
        if len(self.values) == 1:
            self._take(name, 0, is_tried=False)
            return False
        self.name = name
        there = [*range(len(self.values))]
        self._visits = [*there, *reversed(there)]
        self._times = [[] for _ in there]
        self._steps = 0
        self._take(name, 0, is_tried=True)
        return True

    def skip(self) -> str:
        """Leave the next option at its default."""
        return self._left.pop(0)

    def give_up(self) -> None:
        """Try nothing more: defaults, but for what was chosen already."""
        if self.name is not None:
            self._take(self.name, 0, is_tried=False)
        self.name, self._left = None, []

    def stepped(self, seconds: float) -> bool:
        """Note a step.

        Args:
            seconds: that its backwards took.

        Returns:
            whether all values of the option were measured: ``times`` are to be exchanged.
        """
        if self.name is None:
            self._before -= 1
            return False
        self._steps += 1
        if self._steps > _WARM:
            self._times[self._visits[0]].append(seconds)
        if self._steps == _WARM + _TIMED:
            self._steps = 0
            before = self._visits.pop(0)
            if self._visits and self._visits[0] != before:
                self._take(self.name, self._visits[0], is_tried=True)
        return not self._visits

    def times(self) -> list[float]:
        """Give what this rank measured, for each value."""
        return [statistics.median(its) for its in self._times]

    def choose(self, by_rank: Sequence[Sequence[float]], refused: bool = False) -> tuple[Any, list[float]]:
        """Take the value whose slowest rank is the fastest, if that is worth it.

        Args:
            by_rank: the times of all ranks.
            refused: take the default.

        Returns:
            the value, and the time of each.
        """
        assert self.name is not None
        slowest = [max(its) for its in zip(*by_rank, strict=True)]
        best = min(range(len(slowest)), key=slowest.__getitem__)
        if refused or slowest[best] * _GAIN > slowest[0]:
            best = 0
        self._take(self.name, best, is_tried=False)
        self.name = None
        return self.values[best], slowest

    def _take(self, name: str, index: int, is_tried: bool) -> None:
        options = dataclasses.replace(self.built.options, **{name: self.values[index]})
        # Vogels' compression begins at once while it is timed: torch wants two steps as they are (torch 2.13).
        after = 2 if is_tried and self.values[index] == "powersgd" else None
        if options != self.built.options or after != self.built.powersgd_after:
            self.built = Built(options, after)
