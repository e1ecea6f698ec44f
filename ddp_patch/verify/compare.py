"""Two runs side by side: where they differ, first things first."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from . import files
from .difference import Difference
from .lines import lines
from .observed import Observed, ObservedStep
from .printed import Varying
from .tensors import noise, tensors, weights
from .tolerance import SMALL, Tolerance


def compare(one: Observed, other: Observed, tolerance: Tolerance, varying: Varying | None = None) -> list[Difference]:
    """Find what differs.

    Args:
        one: the run alone.
        other: the run to judge.
        tolerance: of rounding.
        varying: what the script prints differently each time it runs alone.
    """
    varying = varying or Varying()
    found = [
        *_ends(one, other),
        *_losses(one, other, tolerance),
        *_steps(one, other, tolerance),
        *_updated_weights(one, other, tolerance),
        *lines(one.out, other.out, tolerance, varying),
        *lines(one.err, other.err, tolerance, varying),
        *weights(one, other, tolerance),
        *_files(one, other, tolerance, varying),
    ]
    return sorted(found, key=lambda difference: difference.order)


def varies(one: Observed, other: Observed, tolerance: Tolerance) -> Varying:
    """Find what two runs of one script alone print and write differently.

    Args:
        one: of the runs.
        other: of the runs.
        tolerance: of rounding, for tensors in files.
    """
    found = Varying([*one.out, *one.err], [*other.out, *other.err])
    for a, b in paired_names(one.files, other.files):
        name = a or b or ""
        its = found.files.setdefault(name if a == b else _pattern(name), Varying())
        if a is None or b is None:
            its.is_whole = True
            continue
        left, right = _read(one, a), _read(other, b)
        its.is_whole |= (left.kind, left.digest) != (right.kind, right.digest)
        for pair in files.laid_out(left, right):
            its.add(*pair)
        its.tensors |= {apart.key for apart in tensors(one, left.tensors, right.tensors, tolerance, "file", "")}
    return found


def _ends(one: Observed, other: Observed) -> Iterator[Difference]:
    ways = [("end" if seen.how == "exit" else seen.how, seen.exit_code) for seen in (one, other)]
    if ways[0] != ways[1]:
        said = f"it ended by {_ending(other)}, alone by {_ending(one)}"
        yield Difference("end", "end", min(one.step_count, other.step_count), "", said)
    elif one.code != other.code:
        said = f"its processes ended with exit code {other.code}, alone {one.code}"
        yield Difference("end", "code", one.step_count, "", said)
    if one.step_count != other.step_count:
        said = f"{other.step_count} optimizer steps, alone {one.step_count}"
        yield Difference("count", "steps", min(one.step_count, other.step_count), "", said)


def _ending(seen: Observed) -> str:
    if seen.is_late:
        return "the time limit"
    ways = {
        "end": "its last line",
        "exit": f"sys.exit({seen.exit_code})",
        "enough": "enough steps",
        "error": seen.error,
    }
    return ways.get(seen.how) or f"exit code {seen.code}"


def _losses(one: Observed, other: Observed, tolerance: Tolerance) -> Iterator[Difference]:
    largest: dict[str, float] = {}
    for loss in one.losses:
        if math.isfinite(loss.value):
            largest[loss.line] = max(largest.get(loss.line, 0.0), abs(loss.value))
    for number, (a, b) in enumerate(zip(one.losses, other.losses, strict=False), 1):
        times = tolerance.exceeds(a.value, b.value, SMALL * largest.get(a.line, 0.0), a.age)
        if times > 1:
            said = f"backward {number}, loss {b.value:.9g}, alone {a.value:.9g} ({_apart(a.value, b.value)})"
            yield Difference("loss", a.line, a.step, b.line, said, times)
    if len(one.losses) != len(other.losses):
        shorter = min(one.losses, other.losses, key=len)
        step = shorter[-1].step if shorter else 0
        line = max(one.losses, other.losses, key=len)[len(shorter)].line
        said = f"{len(other.losses)} backwards, alone {len(one.losses)}"
        yield Difference("count", "backwards", step, line, said)


def _steps(one: Observed, other: Observed, tolerance: Tolerance) -> Iterator[Difference]:
    modes = next((pair for pair in zip(one.steps, other.steps, strict=False) if _modes_differ(*pair)), None)
    if modes is not None:
        counts = f"{modes[1].evaluating}, alone {modes[0].evaluating}"
        said = f"layers of dropout or BatchNorm that are in evaluation mode as this steps: {counts}"
        yield Difference("rate", "mode", modes[0].step, modes[1].line, said)
    left_out = set(noise(one, tolerance))
    for a, b in zip(one.steps, other.steps, strict=False):
        for rate, rated in zip(a.rates, b.rates, strict=False):
            if tolerance.exceeds(rate, rated, 0.0, a.age) > 1:
                said = f"learning rate {rated:.9g}, alone {rate:.9g}"
                yield Difference("rate", "rate", a.step, b.line, said)
        names = one.optimizers[a.number]["names"] if a.number < len(one.optimizers) else []
        total = a.norm or 0.0
        pairs = [("all parameters", a.norm, b.norm), *zip(names, a.norms, b.norms, strict=False)]
        least = tolerance.relative(a.age) * total
        pairs = [pair for pair in pairs if pair[0] not in left_out or pair[2] is None or pair[2] > least]
        worst = max(pairs[1:], key=lambda p: _exceeds(p[1], p[2], total, tolerance, a.age), default=None)
        for name, norm, measured in [pairs[0], *([worst] if worst is not None else [])]:
            times = _exceeds(norm, measured, total, tolerance, a.age)
            if times > 1:
                said = f"gradient of {name}: norm {_shown(measured)}, alone {_shown(norm)}"
                said += "" if norm is None or measured is None else f" ({_apart(norm, measured)})"
                yield Difference("gradient", name, a.step, b.line, said, times)


def _modes_differ(one: ObservedStep, other: ObservedStep) -> bool:
    return one.evaluating != other.evaluating


def _updated_weights(one: Observed, other: Observed, tolerance: Tolerance) -> Iterator[Difference]:
    """Weights that the script updates itself, step by step: the first step that left each differently."""
    reported: set[str] = set()
    for a, b in zip(one.weight_norms, other.weight_norms, strict=False):
        for name, norm in a.norms.items():
            measured = b.norms.get(name)
            times = 0.0 if measured is None else tolerance.exceeds(norm, measured, 0.0, a.age)
            if times > 1 and name not in reported:
                reported.add(name)
                said = f"weights {name}: norm {_shown(measured)}, alone {_shown(norm)}"
                yield Difference("weights", name, a.step, b.line, said, times)


def _exceeds(one: float | None, other: float | None, total: float, tolerance: Tolerance, step: int) -> float:
    if one is None or other is None:
        return 0.0 if one is other or not (one or other) else math.inf
    return tolerance.exceeds(one, other, SMALL * total, step)


def _files(one: Observed, other: Observed, tolerance: Tolerance, varying: Varying) -> Iterator[Difference]:
    for a, b in paired_names(one.files, other.files):
        name = b or a
        assert name is not None
        its = next((varying.files[key] for key in (a, name, _pattern(name)) if key in varying.files), Varying())
        if its.is_whole:
            continue
        if a is None or b is None:
            said = f"{name} is {'missing' if b is None else 'not there alone'}"
            yield Difference("file", _pattern(name), one.step_count, "", said)
            continue
        yield from _contents(one, other, a, b, tolerance, its)


def _contents(
    one: Observed, other: Observed, a: str, b: str, tolerance: Tolerance, its: Varying
) -> Iterator[Difference]:
    left, right = _read(one, a), _read(other, b)
    key = _pattern(a)
    if left.kind != right.kind:
        yield Difference("file", key, one.step_count, "", f"{b} holds {right.kind}, alone {left.kind}")
    elif left.digest != right.digest:
        yield Difference("file", key, one.step_count, "", f"{b} differs, compared byte by byte")
    else:
        for content in (left, right):
            content.tensors = {name: each for name, each in content.tensors.items() if name not in its.tensors}
        yield from tensors(one, left.tensors, right.tensors, tolerance, "file", b)
        for ones, others in files.laid_out(left, right):
            yield from lines(ones, others, tolerance, its, b)


def _read(run: Observed, name: str) -> files.Content:
    return files.read(run.folder / name, run.step_count, run.age)


def paired_names(ones: Sequence[str], others: Sequence[str]) -> list[tuple[str | None, str | None]]:
    """Lay files side by side: by their names, then by their names without digits, which may be a date."""
    left = [name for name in ones if name not in others]
    right = [name for name in others if name not in ones]
    pairs: list[tuple[str | None, str | None]] = [(name, name) for name in ones if name in others]
    for name in left:
        like = next((other for other in right if _pattern(other) == _pattern(name)), None)
        pairs.append((name, like))
        if like is not None:
            right.remove(like)
    return [*pairs, *((None, name) for name in right)]


def _pattern(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _shown(norm: float | None) -> str:
    return "none" if norm is None else f"{norm:.9g}"


def _apart(one: float, other: float) -> str:
    scale = max(abs(one), abs(other))
    return f"{abs(one - other) / scale:.2g} of it" if scale and math.isfinite(one - other) else "not both finite"
