"""What is said in the end of one number of ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .difference import Difference
from .observed import Observed

Word = Literal["same", "same up to draws", "same up to rounding", "differs", "could not tell"]
CODES: dict[Word, int] = {
    "same": 0,
    "same up to draws": 0,
    "same up to rounding": 0,
    "differs": 1,
    "could not tell": 2,
}


@dataclass
class Verdict:
    """Of one comparison."""

    word: Word
    title: str  # "2 ranks"
    why: str = ""  # in a sentence
    differences: list[Difference] = field(default_factory=list)  # that it rests on
    before: list[Difference] = field(default_factory=list)  # that are gone when draws are still, or in float64
    still: list[str] = field(default_factory=list)  # what was held still
    varies: list[str] = field(default_factory=list)  # what varies between two runs alone
    notes: list[str] = field(default_factory=list)
    float64: str = ""  # what float64 makes of the differences
    tolerance: str = ""
    alone: Observed | None = None
    ranks: Observed | None = None
    runs: list[tuple[str, float, str]] = field(default_factory=list)  # name, seconds, how it ended
    causes: list[tuple[str, str]] = field(default_factory=list)  # (line of the script, what is wrong there)

    @property
    def first(self) -> Difference | None:
        """The first difference."""
        return self.differences[0] if self.differences else None

    @property
    def code(self) -> int:
        """Exit code of the command, if this is all it has to say."""
        return CODES[self.word]


def could_not_tell(verdict: Verdict, why: str) -> Verdict:
    """Say why; what differs as it runs is shown all the same."""
    verdict.word, verdict.why = "could not tell", why
    verdict.before, verdict.differences = verdict.before or verdict.differences, []
    return verdict


def of_its_own(verdict: Verdict, excused: list[Difference]) -> Verdict:
    """Tell a script that is not reproducible from one that only prints or writes what varies."""
    trained = [found for found in excused if found.what in ("loss", "gradient", "weights", "count", "rate")]
    if trained:
        verdict.before = verdict.differences or excused
        return could_not_tell(
            verdict,
            "the script itself is not reproducible: two runs alone differ in "
            f"{trained[0].key}{f' ({trained[0].line})' if trained[0].line else ''}. Seed what it draws from, or take "
            "out what depends on the time",
        )
    verdict.word, verdict.why = "same", "every number is the same, but for what varies between two runs alone"
    return verdict
