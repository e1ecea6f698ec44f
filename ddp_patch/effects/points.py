"""Where a rank came to an outward effect, as ranks tell each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..ledger import script_line


@dataclass(frozen=True, slots=True)
class EffectPoint:
    """One outward effect, and where a rank came to it."""

    what: str
    count: int  # of all points of this rank
    paths: tuple[str, ...]
    line: str  # of the script

    @classmethod
    def here(cls, what: str, count: int, paths: Sequence[str]) -> EffectPoint:
        """Tell where this rank is."""
        return cls(what, count, tuple(paths), script_line())

    def matches(self, other: EffectPoint) -> bool:
        """Tell whether two ranks came to the same."""
        if (self.what, self.count) != (other.what, other.count):
            return False
        # Names of temporary files differ; the lines where they are used do not.
        return self.paths == other.paths or _number(self.line) == _number(other.line)

    def unlike(self, other: EffectPoint, rank: int) -> str:
        """Say where rank 0, which is here, and another one differ."""
        counted = self.count != other.count
        return f"rank 0 came to {self._said(counted)}, rank {rank} to {other._said(counted)}"

    def _said(self, counted: bool) -> str:
        call = f"{self.what}({', '.join(map(repr, self.paths))}) in {self.line}"
        return f"{call} as its point {self.count}" if counted else call


def _number(line: str) -> str:
    return line.rpartition(":")[2]  # hosts may have the script in folders of their own
