"""Numbers with units, as people write them: 25e9, 25GB/s, 200Gbit/s, 80GiB, 5us; and back."""

from __future__ import annotations

import math
import re

from .problems import PlanError

_PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_BITS = ("bits", "bit", "b")
_NUMBER = re.compile(r"\s*([-+]?[\d._]*\d\.?(?:[eE][-+]?\d+)?)\s*([A-Za-zµ]*)(/s)?\s*")


def count(text: str) -> float:
    """Read how many: 124e6, 124M."""
    number, unit, per = _parts(text)
    if unit not in _PREFIXES or per:
        raise PlanError(f"{text!r} is no count. Write 124e6 or 124M")
    return number * _PREFIXES[unit]


def size(text: str) -> float:
    """Read bytes: 80e9, 80GB, 80GiB."""
    number, unit, per = _parts(text)
    factor = _bytes(unit)
    if factor is None or per:
        raise PlanError(f"{text!r} are no bytes. Write 80e9, 80GB or 80GiB")
    return number * factor


def rate(text: str) -> float:
    """Read bytes/s: 25e9, 25GB/s, 200Gbit/s, 200Gb/s, 200Gbps. A small b is a bit, a large one a byte."""
    number, unit, per = _parts(text)
    if not per and unit.endswith(("bps", "Bps")):
        unit, per = unit[:-2], True
    bits = _PREFIXES.get(unit[: -len(end)]) if (end := next(filter(unit.endswith, _BITS), "")) else None
    factor = _bytes(unit) if bits is None else bits / 8
    if factor is None or (unit.endswith("b") and not per):
        raise PlanError(f"{text!r} are no bytes per second. Write 25e9, 25GB/s or 200Gbit/s")
    return number * factor


def time(text: str) -> float:
    """Read seconds: 0.18, 180ms, 5us."""
    number, unit, per = _parts(text)
    if unit not in _SECONDS or per:
        raise PlanError(f"{text!r} are no seconds. Write 0.18, 180ms or 5us")
    return number * _SECONDS[unit]


def shown_seconds(seconds: float) -> str:
    """Write seconds with three digits: 180 ms."""
    if seconds == 0:
        return "0 ms"
    if seconds >= 1:
        return f"{_three(seconds)} s"
    return f"{_three(seconds * 1e3)} ms" if seconds >= 1e-3 else f"{_three(seconds * 1e6)} us"


def shown_bytes(size: float) -> str:
    """Write bytes with three digits: 1.98 GB."""
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= factor:
            return f"{_three(size / factor)} {unit}"
    return f"{size:.0f} bytes"


def shown_count(number: float) -> str:
    """Write a number with three digits, or whole: 178, 11,400, 0.25."""
    return f"{number:,.0f}" if number >= 100 or number == int(number) else _three(number)


def _three(number: float) -> str:
    digits = max(2 - math.floor(math.log10(number)), 0) if number > 0 else 0
    return f"{number:,.{digits}f}"


def _bytes(unit: str) -> float | None:
    return _PREFIXES.get(unit[:-1] if unit.endswith("B") else unit)


def _parts(text: str) -> tuple[float, str, bool]:
    found = _NUMBER.fullmatch(text)
    try:
        number = float(found[1]) if found else math.nan
    except ValueError:
        number = math.nan
    if found is None or not math.isfinite(number):
        raise PlanError(f"{text!r} is no number. Write it as 25e9 or 0.18, with a unit if you like: 25GB/s, 180ms")
    return number, found[2], bool(found[3])
