"""Tell from where ranks are that they cannot go on together, and say so."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from ..errors import TrustError
from ..trail import SLOTS, count_of, differ
from .last_words import LastWords
from .recorder import TracePoint

ADVICE = {
    "elsewhere": (
        "so the ranks do not run the same program any more and would wait for each other for ever. Ranks part by a "
        "clock or a time limit, by a file that only some of them see (a STOP file), by a rank, a process id or a host "
        "name, or by an exception that only one of them met and caught. Decide from what is the same on every rank: "
        "write `if step == 10_000: break`, not `if time.time() > end: break`. Under view='local' a loss is a number of "
        "the rank's own rows as well: write `if ddp_patch.mean(loss) < best:`."
    ),
    "ended": (
        "so those that go on would wait for it for ever. An end that one rank alone comes to hangs on a clock, on a "
        "file that only some ranks see, on a rank-aware call or on an exception that one rank caught. Let all end at "
        "the same line: write `if loss.isnan(): sys.exit(1)` on a value that all of them hold."
    ),
    "gone": (
        "so nobody does its share of the work. A process goes without a word when it is killed (by the system too, "
        "when the memory of the host is used up: `dmesg` tells), when it calls os._exit, or when code in C crashes; "
        "gloo ends one that gets the data of another collective. Start the job again from its last checkpoint."
    ),
    "left": "so nobody does its share of the work. Start the job again from its last checkpoint.",
    "stopped": (
        "so nobody does its share of the work. A process stops by SIGSTOP, as `kill -STOP`, a terminal or a "
        "scheduler sends it. To pause a job, stop all its processes at once: `kill -STOP -- -<process group>`."
    ),
}


@dataclass(frozen=True)
class ReportedLocation:
    """Where a rank said that it is."""

    words: Sequence[int]  # of its trail
    what: str  # the point that it came to last
    line: str  # of the script; empty where only its trail was seen
    is_inside: bool  # has not gone on from it
    end: str | None = None  # how its program ended
    recent: Sequence[str] = ()  # the points that it came to before and then, the last one last

    @property
    def count(self) -> int:
        """Points that it came to."""
        return count_of(self.words)

    def to_bytes(self) -> bytes:
        """Write it down for other ranks."""
        return json.dumps(asdict(self)).encode()

    def points(self) -> dict[int, TracePoint]:
        """Give the last points that it came to, by number."""
        first = self.count - len(self.recent) + 1
        points = {first + index: TracePoint(what) for index, what in enumerate(self.recent) if first + index > 0}
        if self.end is not None:
            points[self.count + 1] = TracePoint("the end")
        elif self.count in points:
            points[self.count] = TracePoint(self.what, self.line if self.is_inside else "")
        return points

    @classmethod
    def from_bytes(cls, data: bytes) -> ReportedLocation:
        """Read what another rank wrote down.

        Raises:
            TrustError: if it was somebody else.
        """
        try:
            return cls(**json.loads(data))
        except (ValueError, TypeError) as error:
            raise TrustError(f"where a rank is: what came is not of this job's ranks ({error}).") from error

    def named(self, count: int) -> str:
        """Name the point that it came to as this number, if that is remembered."""
        back = self.count - count
        return self.recent[-1 - back] if 0 <= back < len(self.recent) else ""

    def at(self, count: int) -> str:
        """Describe what it came to as its point of this number, and where it is."""
        if self.end is not None or count == self.count or not self.named(count):
            return str(self)
        return f"{self.named(count)} (and on to {self})"

    def __str__(self) -> str:
        """Describe it within a message."""
        if self.end is not None:
            return f"its end ({self.end})"
        if not self.line:
            return f"{self.what}, its point {self.count}"
        return f"{self.what} in {self.line}" if self.is_inside else f"{self.line} (after {self.what})"


@dataclass(frozen=True)
class Finding:
    """What proves that ranks have parted."""

    kind: str  # "elsewhere", "ended", "gone", "stopped"
    rank: int  # whom it is about
    count: int  # of the point in question


def compare(local: Sequence[int], other: Sequence[int], rank: int, this_rank: int) -> Finding | None:
    """Compare two ranks' trails: what happened cannot become right any more, however old it is.

    Args:
        local: words of this rank.
        other: words of another one.
        rank: of the other.
        this_rank: of this one.
    """
    count = differ(local, other)
    if count is not None:
        return Finding("elsewhere", rank, count)
    for ended, who, going in ((other[SLOTS], rank, local), (local[SLOTS], this_rank, other)):
        if ended and count_of(going) > ended - 1:
            return Finding("ended", who, count_of(going))
    return None


def message(finding: Finding, places: Mapping[int, ReportedLocation], line: str, words: LastWords | None = None) -> str:
    """Say what was found, why it cannot go on, and what to write.

    Args:
        finding: that proves it.
        places: of all ranks that said where they are.
        line: of the script, where it was found.
        words: that a rank which is gone has left.
    """
    rest = {rank: place for rank, place in places.items() if rank != finding.rank}
    culprit = places.get(finding.rank)
    who = f"rank {finding.rank}"
    if finding.kind == "elsewhere":
        return f"{line}: {went(places, finding.count)}, {ADVICE[finding.kind]}"
    seen = "it never said where it is"
    if culprit is not None:
        after = next(filter(None, (place.named(culprit.count + 1) for place in rest.values())), "")
        seen = f"last seen at {culprit}" + (f", before {after}" if after else "")
    kind = finding.kind if words is None else "left"
    found = {
        "ended": f"{who} came to {culprit}",
        "gone": f"the process of {who} is gone ({seen})",
        "left": f"the process of {who} is gone: {words and words.what} ({seen})",
        "stopped": f"the process of {who} is stopped ({seen})",
    }[kind]
    frames = f"\n\nrank {finding.rank}: {words.frames}" if words and words.frames else ""
    return f"{line}: {found}, {went(rest)}, {ADVICE[kind]}{frames}"


def went(places: Mapping[int, ReportedLocation], count: int | None = None) -> str:
    """Say which ranks came where, as their point of this number."""
    sides: dict[str, list[int]] = {}
    for rank, place in sorted(places.items()):
        sides.setdefault(str(place) if count is None else place.at(count), []).append(rank)
    said = [f"{named_ranks(ranks)} {'came ' if first else ''}to {where}" for first, where, ranks in _marked(sides)]
    return ", ".join(said)


def _marked(sides: Mapping[str, list[int]]) -> list[tuple[bool, str, list[int]]]:
    return [(index == 0, where, ranks) for index, (where, ranks) in enumerate(sides.items())]


def named_ranks(ranks: Sequence[int]) -> str:
    """Write which ranks these are."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 4 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
