"""One thing that two runs differ in."""

from __future__ import annotations

import math
from dataclasses import dataclass

_NUMBERS = ("loss", "gradient", "printed")
_ORDER = ("end", "rows", "loss", "gradient", "rate", "count", "printed", "weights", "file")


@dataclass(frozen=True)
class Difference:
    """One thing that two runs differ in."""

    what: str  # one of _ORDER
    key: str  # what of it: a tensor, a line of the script, a file
    step: int  # optimizer steps taken before
    line: str  # of the script; empty if it is of none
    said: str  # in words
    times: float = math.inf  # how many times what is allowed

    @property
    def order(self) -> tuple[int, int]:
        """First things first."""
        return self.step, _ORDER.index(self.what)


def reached(differences: list[Difference]) -> list[Difference]:
    """Keep what can be held against a run that was ended for being late: numbers that it came to."""
    return [found for found in differences if found.what in _NUMBERS and found.times < math.inf]


def without(differences: list[Difference], itself: list[Difference]) -> tuple[list[Difference], list[Difference]]:
    """Part differences from those that, by then, two runs alone have as well."""
    since: dict[tuple[str, str], int] = {}
    for found in itself:
        since.setdefault((found.what, found.key), found.step)
    left: list[Difference] = []
    excused: list[Difference] = []
    for found in differences:
        (left if found.step < since.get((found.what, found.key), math.inf) else excused).append(found)
    return left, excused
