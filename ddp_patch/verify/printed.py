"""Printed lines: their numbers by value, the text around them as it is."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

_NUMBER = re.compile(
    r"(?:(?<![\w.])[-+]?(?:\d[\d_]*\.?\d*|\.\d+)|(?<=[A-Za-z_])\d+\.\d+)(?:[eE][-+]?\d+)?"
    r"|(?<!\w)[-+]?(?:nan|inf)(?!\w)"
)
_UNIT = r"(?:[nuµm]?s|secs?|seconds?|mins?|minutes?|h|hours?)"
# Between a word for time and its number: others may tell what else the number is ("time series error 0.1").
_BETWEEN = (
    r"(?:[ _](?:time|taken|spent|elapsed|total|is|was|in(?:[ _](?:m?s|seconds|minutes|hours))?|per[ _][a-z]+)|/[a-z]+"
    r"|[ _]for \w+(?: \d+)?(?= *[:=]))*[ :=]*"
)
# What says how long something took, or when it was: no two runs print the same.
_TIME = re.compile(
    r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?|(?<![\w.])\d+:[0-5]\d:[0-5]\d(?:\.\d+)?(?!\d)"
    r"|(?<=\[)\d\d+:[0-5]\d(?=[<,])|(?<=<)\d\d+:[0-5]\d(?=[,\]])"  # of a progress bar; "3:20" may be a step of an epoch
    rf"|(?i:(?<![a-z])(?:at|eta|time|took|elapsed|duration)(?![a-z]){_BETWEEN})\d+(?::[0-5]\d){{1,2}}(?:\.\d+)?(?!\d)"
    r"|(?<![\w.])(?:s|ms)/\w\w+ *[:=]? *\d+(?:\.\d+)?"
    r"| *\d+(?:\.\d+)? ?(?:s|ms)/\w\w+"
    r"| *\d+(?:\.\d+)?(?![\d.]) ?(?!(?:[ckmnµ]?m|rad|deg)/s)\w*/s\b"  # a speed is no speed of training
    rf"|(?<![\w.])\d+ (?:h|mins?)(?= \d+(?:\.\d+)? ?{_UNIT}\b)"
    # Not of "mean 0.50 min 0.12", nor of "p 0.5 s=3".
    rf"|(?<![\w.])\d+(?:\.\d+)?(?! (?:[nuµm]?s|min|h)(?: +[-+.]?\d|/m)) ?{_UNIT}\b"
    r"(?! *[:=] *[-+.]?\d)"
    r"| *\?(?:it|\w+)/s|(?<=[=<])\?"
    rf"|(?i:(?<![a-z])(?:time|elapsed|duration)(?![a-z]){_BETWEEN})\d+(?:\.\d+)?(?![\d.]* *[:=])"
    rf"|(?i:(?<![a-z])took(?![a-z]){_BETWEEN})(?:\d+\.\d+|\d+(?![\d.]* *[a-z]))(?![\d.]* *[:=])"  # not 3 steps
    r"|\bETA[ :=]*\d+(?:\.\d+)?"
)
_PADDED = re.compile(r" +(?=#)")  # a number's width is not its text
_NODE = re.compile(r"grad_fn=<\w+>")  # the name of a node of autograd's, which is the engine's
_FEW, _MOST = 64, 4096  # lines that are laid side by side at once
_BAR = re.compile(r"[█▏▎▍▌▋▊▉]+|(?<=[|\[])[#=>. -]{2,}(?=[|\]])")


@dataclass(frozen=True)
class PrintedLine:
    """One printed line."""

    text: str
    line: str = ""  # of the script
    step: int = 0  # optimizer steps taken before
    age: int = 0  # these, or backwards if there were more: what rounding grows with
    template: str = field(init=False)
    numbers: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Take the numbers out of the text."""
        plain = _BAR.sub("~", _TIME.sub("<time>", _NODE.sub("grad_fn=<>", self.text)))
        object.__setattr__(self, "template", _PADDED.sub(" ", _NUMBER.sub("#", plain)))
        object.__setattr__(self, "numbers", tuple(_NUMBER.findall(plain)))


def paired(
    ones: Sequence[PrintedLine], others: Sequence[PrintedLine]
) -> list[tuple[PrintedLine | None, PrintedLine | None]]:
    """Lay the lines of two runs side by side, by their text without numbers; None where a run has none."""
    left, right = [said.template for said in ones], [said.template for said in others]
    pairs: list[tuple[PrintedLine | None, PrintedLine | None]] = []
    a = c = 0
    for at, to, size in _blocks(left, right):
        if at - a == to - c:
            pairs.extend(zip(ones[a:at], others[c:to], strict=True))
        else:
            pairs.extend((said, None) for said in ones[a:at])
            pairs.extend((None, said) for said in others[c:to])
        a, c = at + size, to + size
        pairs.extend(zip(ones[at:a], others[to:c], strict=True))
    return pairs


def _blocks(left: list[str], right: list[str]) -> Iterator[tuple[int, int, int]]:
    """Give where which lines are alike, and how many, up to the end of both.

    difflib takes the square of the lines, or more, so it gets few at once: more only where none of these are alike.
    """
    ends = _alike(reversed(left), reversed(right))
    until, till = len(left) - ends, len(right) - ends
    a, c, window = 0, 0, _FEW
    while a < until and c < till:
        one, other = left[a : min(a + window, until)], right[c : min(c + window, till)]
        same = _alike(one, other)
        found = [(0, 0, same)] if same else difflib.SequenceMatcher(None, one, other, False).get_matching_blocks()[:-1]
        if found:
            yield from ((a + at, c + to, size) for at, to, size in found)
            at, to, size = found[-1]
            a, c, window = a + at + size, c + to + size, _FEW
        elif window < _MOST and (a + window < until or c + window < till):
            window *= 2
        else:
            a, c, window = a + len(one), c + len(other), _FEW
    yield until, till, ends


def _alike(ones: Iterable[str], others: Iterable[str]) -> int:
    return sum(1 for _ in itertools.takewhile(bool, map(str.__eq__, ones, others)))


def digit(number: str) -> float:
    """One in the last digit that is printed; 0 for whole numbers."""
    mantissa, _, exponent = number.lower().replace("_", "").partition("e")
    places = len(mantissa.partition(".")[2])
    if not places and not exponent:
        return 0.0
    return float(10.0 ** (int(exponent or 0) - places))


def value(number: str) -> float:
    """A printed number."""
    return float(number.replace("_", ""))


class Varying:
    """What two runs of one script alone print or write differently: it is not the number of ranks that changes it."""

    def __init__(self, ones: Sequence[PrintedLine] = (), others: Sequence[PrintedLine] = ()) -> None:
        """Compare the lines of two runs alone, or of a file of theirs."""
        self.numbers: set[tuple[str, int]] = set()  # (text without numbers, which number)
        self.texts: set[str] = set()
        self.tensors: set[str] = set()  # in a file, by name
        self.is_whole = False  # a file of which nothing can be compared
        self.files: dict[str, Varying] = {}
        self.add(ones, others)

    def add(self, ones: Sequence[PrintedLine], others: Sequence[PrintedLine]) -> None:
        """Compare further lines."""
        for one, other in paired(ones, others):
            if one is None or other is None or one.template != other.template:
                self.texts.update(said.template for said in (one, other) if said is not None)
                continue
            for place, (a, b) in enumerate(zip(one.numbers, other.numbers, strict=True)):
                if a != b:
                    self.numbers.add((one.template, place))

    def covers(self, said: PrintedLine, place: int) -> bool:
        """Tell whether a number varies by itself."""
        return (said.template, place) in self.numbers or said.template in self.texts

    def named(self) -> list[str]:
        """Name it, part by part."""
        lines = [f"number {place + 1} of {template!r}" for template, place in sorted(self.numbers)]
        named = [*lines, *map(repr, sorted(self.texts)), *sorted(self.tensors)]
        for name, its in sorted(self.files.items()):
            named += [name] if its.is_whole else [f"{name}: {part}" for part in its.named()]
        return named
