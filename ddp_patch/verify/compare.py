"""Two runs side by side: where they differ, first things first."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from . import files
from .observed import Observed
from .printed import Said, Varying, digit, paired, value
from .tolerance import Tolerance

_SMALL = 0.01  # of the largest value in a column: differences of smaller values are relative to that
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
        *lines(one.out, other.out, tolerance, varying),
        *lines(one.err, other.err, tolerance, varying),
        *_weights(one, other, tolerance),
        *_files(one, other, tolerance, varying),
    ]
    return sorted(found, key=lambda difference: difference.order)


def _ends(one: Observed, other: Observed) -> Iterator[Difference]:
    if (one.how, one.exit_code) != (other.how, other.exit_code):
        said = f"it ended by {_ending(other)}, alone by {_ending(one)}"
        yield Difference("end", "end", min(one.taken, other.taken), "", said)
    if one.taken != other.taken:
        said = f"{other.taken} optimizer steps, alone {one.taken}"
        yield Difference("count", "steps", min(one.taken, other.taken), "", said)


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
        times = tolerance.exceeds(a.value, b.value, _SMALL * largest.get(a.line, 0.0), a.age)
        if times > 1:
            said = f"backward {number}, loss {b.value:.9g}, alone {a.value:.9g} ({_apart(a.value, b.value)})"
            yield Difference("loss", b.line, a.step, b.line, said, times)
    if len(one.losses) != len(other.losses):
        shorter = min(one.losses, other.losses, key=len)
        step = shorter[-1].step if shorter else 0
        line = max(one.losses, other.losses, key=len)[len(shorter)].line
        said = f"{len(other.losses)} backwards, alone {len(one.losses)}"
        yield Difference("count", "backwards", step, line, said)


def _steps(one: Observed, other: Observed, tolerance: Tolerance) -> Iterator[Difference]:
    for a, b in zip(one.steps, other.steps, strict=False):
        for rate, rated in zip(a.rates, b.rates, strict=False):
            if tolerance.exceeds(rate, rated, 0.0, a.age) > 1:
                said = f"learning rate {rated:.9g}, alone {rate:.9g}"
                yield Difference("rate", "rate", a.step, b.line, said)
        names = one.optimizers[a.number]["names"] if a.number < len(one.optimizers) else []
        total = a.norm or 0.0
        pairs = [("all parameters", a.norm, b.norm), *zip(names, a.norms, b.norms, strict=False)]
        worst = max(pairs[1:], key=lambda p: _exceeds(p[1], p[2], total, tolerance, a.age), default=None)
        for name, norm, measured in [pairs[0], *([worst] if worst is not None else [])]:
            times = _exceeds(norm, measured, total, tolerance, a.age)
            if times > 1:
                said = f"gradient of {name}: norm {_shown(measured)}, alone {_shown(norm)}"
                said += "" if norm is None or measured is None else f" ({_apart(norm, measured)})"
                yield Difference("gradient", name, a.step, b.line, said, times)


def _exceeds(one: float | None, other: float | None, total: float, tolerance: Tolerance, step: int) -> float:
    if one is None or other is None:
        return 0.0 if one is other or not (one or other) else math.inf
    return tolerance.exceeds(one, other, _SMALL * total, step)


def lines(
    ones: Sequence[Said], others: Sequence[Said], tolerance: Tolerance, varying: Varying, where: str = ""
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
        given = other or one
        assert given is not None
        if one is None or other is None:
            if given.template not in varying.texts and given.text.strip():
                how = "missing" if other is None else "not there alone"
                words = f"{where}{': ' if where else ''}{how}: {given.text!r}"
                yield Difference(what, where or given.template, given.step, given.line, words)
            continue
        if one.template != other.template:
            if not {one.template, other.template} & varying.texts:
                yield Difference(what, where or one.template, one.step, other.line, _side(where, one, other))
            continue
        for place, (a, b) in enumerate(zip(one.numbers, other.numbers, strict=True)):
            if a == b or varying.covers(one, place):
                continue
            whole = not digit(a) and not digit(b)
            scale = 0.0 if whole else _SMALL * largest.get((one.template, place), 0.0)
            times = _printed(a, b, scale, tolerance, one.age, whole)
            if times > 1:
                yield Difference(what, where or one.template, one.step, other.line, _side(where, one, other), times)
                break


def _printed(a: str, b: str, scale: float, tolerance: Tolerance, step: int, whole: bool) -> float:
    x, y = value(a), value(b)
    if whole:
        return 0.0 if x == y else math.inf
    rounding = max(digit(a), digit(b)) * 1.001
    if abs(x - y) <= rounding:
        return 0.0
    beyond = y - rounding if y > x else y + rounding
    return tolerance.exceeds(x, beyond, scale, step)


def _side(where: str, one: Said, other: Said) -> str:
    return f"{where}{': ' if where else ''}{other.text.strip()!r}, alone {one.text.strip()!r}"


def _weights(one: Observed, other: Observed, tolerance: Tolerance) -> Iterator[Difference]:
    yield from _tensors(one, one.tensors, other.tensors, tolerance, "weights", "")
    for number, held in enumerate(other.others, 1):
        apart = list(_tensors(other, other.tensors, held, tolerance, "weights", f"on rank {number}"))
        yield from (dataclasses.replace(found, said=f"{found.said}, compared with rank 0") for found in apart[:1])


def _tensors(
    alone: Observed, ones: dict[str, Tensor], others: dict[str, Tensor], tolerance: Tolerance, what: str, where: str
) -> Iterator[Difference]:
    largest: dict[str, float] = {}
    for name, tensor in ones.items():
        root = name.partition(".")[0]
        largest[root] = max(largest.get(root, 0.0), _largest(tensor))
    left_out = noise(alone, tolerance)
    found = []
    for name in [*ones, *(name for name in others if name not in ones)]:
        label = f"{where}: {name}" if where else f"weights {name}"
        key = where or name
        if name not in ones or name not in others:
            said = f"{label} is {'missing' if name in ones else 'not there alone'}"
            found.append(Difference(what, key, alone.taken, "", said))
            continue
        a, b = ones[name], others[name]
        if a.shape != b.shape or a.dtype != b.dtype:
            said = f"{label} is {_kind(b)}, alone {_kind(a)}"
            found.append(Difference(what, key, alone.taken, "", said))
            continue
        if any(f".{name}".endswith(f".{other.partition('.')[2]}") for other in left_out):
            continue
        scale = largest[name.partition(".")[0]] if tolerance.dtype == "float64" else _largest(a)
        times, apart = _worst(a, b, scale, tolerance, alone.age)
        if times > 1:
            said = f"{label} differs by up to {apart:.3g}, and its largest value is {_largest(a):.3g}"
            found.append(Difference(what, key, alone.taken, "", said, times))
    yield from sorted(found, key=lambda difference: -difference.times)


def noise(seen: Observed, tolerance: Tolerance) -> list[str]:
    """Name the parameters whose gradients are nothing but rounding in every step, as a bias before BatchNorm has them.

    Optimizers such as Adam, which divide by the gradient's size, make steps of full size of it, in no direction.
    """
    largest: dict[str, float] = {}
    for step in seen.steps:
        if step.number < len(seen.optimizers) and step.norm:
            for name, norm in zip(seen.optimizers[step.number]["names"], step.norms, strict=False):
                if norm is not None:
                    largest[name] = max(largest.get(name, 0.0), norm / step.norm)
    return [name for name, part in largest.items() if 0 < part < tolerance.relative(0)]


def _worst(a: Tensor, b: Tensor, scale: float, tolerance: Tolerance, step: int) -> tuple[float, float]:
    if not a.numel():
        return 0.0, 0.0
    if not (a.is_floating_point() or a.is_complex()):
        apart = (a.to(torch.float64) - b.to(torch.float64)).abs().max().item()
        return (math.inf if apart else 0.0), apart
    x, y = (t.to_dense() if t.is_sparse else t for t in (a, b))
    kind = torch.complex128 if x.is_complex() else torch.float64
    x, y = x.to(kind), y.to(kind)
    apart = torch.where((x == y) | (x.isnan() & y.isnan()), 0.0, (x - y).abs()).nan_to_num(math.inf).max().item()
    return tolerance.exceeds(0.0, apart, scale, step), apart


def _largest(tensor: Tensor) -> float:
    if not tensor.numel() or tensor.dtype == torch.bool:
        return 0.0
    dense = tensor.to_dense() if tensor.is_sparse else tensor
    return float((dense.abs() if dense.is_complex() else dense.double().abs()).nan_to_num(0.0).max())


def _files(one: Observed, other: Observed, tolerance: Tolerance, varying: Varying) -> Iterator[Difference]:
    for a, b in paired_names(one.files, other.files):
        name = b or a
        assert name is not None
        if a is None or b is None:
            said = f"{name} is {'missing' if b is None else 'not there alone'}"
            yield Difference("file", _pattern(name), one.taken, "", said)
            continue
        yield from _contents(one, other, a, b, tolerance, varying)


def _contents(
    one: Observed, other: Observed, a: str, b: str, tolerance: Tolerance, varying: Varying
) -> Iterator[Difference]:
    left, right = (files.read(run.folder / name, one.taken, one.age) for run, name in ((one, a), (other, b)))
    key = _pattern(a)
    if left.kind != right.kind:
        yield Difference("file", key, one.taken, "", f"{b} holds {right.kind}, alone {left.kind}")
    elif left.digest != right.digest:
        yield Difference("file", key, one.taken, "", f"{b} differs, compared byte by byte")
    else:
        yield from _tensors(one, left.tensors, right.tensors, tolerance, "file", b)
        yield from lines(left.lines, right.lines, tolerance, varying, b)


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


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _shown(norm: float | None) -> str:
    return "none" if norm is None else f"{norm:.9g}"


def _apart(one: float, other: float) -> str:
    scale = max(abs(one), abs(other))
    return f"{abs(one - other) / scale:.2g} of it" if scale and math.isfinite(one - other) else "not both finite"
