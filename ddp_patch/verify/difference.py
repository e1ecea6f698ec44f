"""One thing that two runs differ in."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
