"""Printed lines of two runs, or the lines of a file that both wrote, side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from .difference import Difference
from .printed import PrintedLine, Varying, digit, paired, value
from .tolerance import SMALL, Tolerance

_LAST = 2.0  # times the allowance: one in the last digit, which may be rounding


def lines(
    ones: Sequence[PrintedLine], others: Sequence[PrintedLine], tolerance: Tolerance, varying: Varying, where: str = ""
) -> Iterator[Difference]:
    """Compare printed lines, or those of a file.

    Args:
        ones: of the run alone.
        others: of the other run.
        tolerance: of rounding.
        varying: what varies by itself.
        where: the file; empty for what is printed.
    """
    what = "file" if where else "printed"
    largest: dict[tuple[str, int], float] = {}
    for said in ones:
        for place, number in enumerate(said.numbers):
            if math.isfinite(value(number)):
                column = said.template, place
                largest[column] = max(largest.get(column, 0.0), abs(value(number)))
    for one, other in paired(ones, others):
        printed = other or one
        assert printed is not None
        if one is None or other is None:
            if printed.template not in varying.texts and printed.text.strip():
                how = "missing" if other is None else "not there alone"
                words = f"{where}{': ' if where else ''}{how}: {printed.text!r}"
                yield Difference(what, where or printed.template, printed.step, printed.line, words)
            continue
        if one.template != other.template:
            if not {one.template, other.template} & varying.texts:
                yield Difference(what, where or one.template, one.step, other.line, _side(where, one, other))
            continue
        for place, (a, b) in enumerate(zip(one.numbers, other.numbers, strict=True)):
            if a == b or varying.covers(one, place):
                continue
            whole = not digit(a) and not digit(b)
            scale = 0.0 if whole else SMALL * largest.get((one.template, place), 0.0)
            times = _printed(a, b, scale, tolerance, one.age, whole)
            if times > 1:
                yield Difference(what, where or one.template, one.step, other.line, _side(where, one, other), times)
                break


def _printed(a: str, b: str, scale: float, tolerance: Tolerance, step: int, whole: bool) -> float:
    x, y = value(a), value(b)
    if whole:
        return 0.0 if x == y else math.inf
    # Of numbers in their shortest form, the one with fewer digits has these and zeros.
    rounding = min(filter(None, (digit(a), digit(b)))) * 1.001
    if abs(x - y) <= rounding:
        # Of few digits, one in the last is what a row less does as well: float64 tells.
        return 0.0 if tolerance.exceeds(0.0, rounding, max(scale, abs(x), abs(y)), step) <= 1 else _LAST
    beyond = y - rounding if y > x else y + rounding
    return tolerance.exceeds(x, beyond, scale, step)


def _side(where: str, one: PrintedLine, other: PrintedLine) -> str:
    return f"{where}{': ' if where else ''}{other.text.strip()!r}, alone {one.text.strip()!r}"
