"""From where two scripts differ to the line that makes them differ: what is known to go wrong in migrated scripts."""

from __future__ import annotations

import ast
import statistics
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .difference import Difference
from .observed import Observed

Cause = tuple[str, str]  # line of the script, what is wrong there


def causes(old: Observed, ranks: list[Observed], found: Sequence[Difference], script: Path) -> list[Cause]:
    """Name the lines of the new script to look at, the likeliest first.

    Args:
        old: what the old script did.
        ranks: what the new one did, on each rank.
        found: the differences, in order.
        script: the new one.
    """
    source = Source(script)
    overlaps = any(one.key == "coverage" for one in found)
    named = [
        *(_seeds(ranks, found) if overlaps else ()),
        *_rows(found),
        *_statistics(ranks, found),
        *_clipping(ranks),
        *_modes(found, source),
        *_unsynchronised(ranks, found, source),
        *_by_hand(found, source),
        *_optimizers(old, ranks[0]),
        *_rates(ranks[0], found),
        *_loss(old, ranks, found, source),
        *_gradient(old, ranks[0], found, source),
        *_seeds(ranks, found),
        *_effects(found),
    ]
    return once(named)


def once(named: Iterable[Cause]) -> list[Cause]:
    """Leave each line its first reason."""
    first: dict[str, str] = {}
    for line, why in named:
        if line:
            first.setdefault(line, why)
    return list(first.items())


class Source:
    """The text of a script, to find lines in."""

    def __init__(self, path: Path) -> None:
        """Read it."""
        self.name = path.name
        self.tree = ast.parse(path.read_bytes())
        with tokenize.open(path) as text:
            self.lines = text.read().split("\n")

    def having(self, *parts: str) -> Iterator[str]:
        """Name the lines that have all of these in them."""
        for number, text in enumerate(self.lines, 1):
            if all(part in text for part in parts) and not text.lstrip().startswith("#"):
                yield f"{self.name}:{number}"

    def assignment(self, line: str) -> str:
        """Name the line where what is used in another line was last assigned before: a loss, say."""
        name, _, number = line.rpartition(":")
        if name != self.name or not number.isdigit():
            return ""
        at = int(number)
        if any(node.lineno == at and not _takes_a_name(node) for node in self._nodes(ast.Call)):
            return line
        used = {node.id for node in self._nodes(ast.Name) if node.lineno == at}
        places = [
            node.lineno
            for node in ast.walk(self.tree)
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign))
            and node.lineno < at
            and any(isinstance(t, ast.Name) and t.id in used for t in _targets(node))
        ]
        return f"{self.name}:{max(places)}" if places else ""

    def _nodes(self, kind: type[Any]) -> Iterator[Any]:
        return (node for node in ast.walk(self.tree) if isinstance(node, kind))


def _takes_a_name(call: ast.Call) -> bool:
    """Tell ``loss.backward()`` and ``accelerator.backward(loss)`` from ``(loss / 2).backward()``."""
    if getattr(call.func, "attr", "") != "backward":
        return True
    candidates = [*call.args[:1], getattr(call.func, "value", None)]
    return any(isinstance(value, (ast.Name, ast.Call)) for value in candidates)


def _targets(node: Any) -> list[Any]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [item for target in targets for item in (target.elts if isinstance(target, ast.Tuple) else [target])]


def _rows(found: Sequence[Difference]) -> Iterator[Cause]:
    yield from ((one.line, one.said) for one in found if one.what == "rows")


def _statistics(ranks: list[Observed], found: Sequence[Difference]) -> Iterator[Cause]:
    if any(one.key == "statistics" for one in found):
        for note in ranks[0].notes.get("made", []):
            if note["what"] == "ddp":
                yield note["line"], "BatchNorm sees each rank's rows only: convert_sync_batchnorm before this"


def _clipping(ranks: list[Observed]) -> Iterator[Cause]:
    for notes in zip(*(rank.notes.get("clip", []) for rank in ranks), strict=False):
        values = [note["value"] for note in notes]
        if max(values) - min(values) > 1e-4 * max(values):
            yield notes[0]["line"], f"gradients are clipped before they are averaged: their norms are {_few(values)}"
            return


def _unsynchronised(ranks: list[Observed], found: Sequence[Difference], source: Source) -> Iterator[Cause]:
    difference = next((one for one in found if one.what == "gradient" and one.key == "ranks"), None)
    if difference is None:
        return
    if any(note["what"] == "ddp" for note in ranks[0].notes.get("made", [])):
        for line in source.having(".module("):
            yield line, "the forward goes past DistributedDataParallel, which then averages no gradients"
        for line in source.having("no_sync"):
            yield line, "the last backward before a step may be in here, and its gradients are not averaged"
    yield difference.line, f"{difference.said}. Average them before this line"


def _modes(found: Sequence[Difference], source: Source) -> Iterator[Cause]:
    mode = next((one for one in found if one.key == "mode"), None)
    if mode is not None:
        for line in source.having(".eval()"):
            yield line, f"after {mode.step} steps, {mode.said}: is train() called again behind this line?"
        yield mode.line, mode.said


def _by_hand(found: Sequence[Difference], source: Source) -> Iterator[Cause]:
    """A script without an optimizer, whose ranks hold weights of their own."""
    difference = next((one for one in found if one.what == "weights" and one.key == "ranks"), None)
    if difference is not None:
        for line in (*source.having(".grad"), *source.having("autograd.grad")):
            yield line, f"{difference.said}. Are these gradients averaged over ranks before they are used?"


def _optimizers(old: Observed, new: Observed) -> Iterator[Cause]:
    for one, other in zip(old.optimizers, new.optimizers, strict=False):
        if one["sizes"] != other["sizes"]:
            said = f"trains {sum(other['sizes'])} values in {len(other['sizes'])} parameters, the old one "
            yield other["line"], f"{said}{sum(one['sizes'])} in {len(one['sizes'])}"
        elif set(other["names"]) != set(one["names"]):
            yield other["line"], f"trains {_few(sorted(set(other['names']) - set(one['names'])))}, the old one does not"
        elif one["type"] != other["type"]:
            yield other["line"], f"{other['type']}, the old one has {one['type']}"
        else:
            for mine, theirs in zip(one["options"], other["options"], strict=False):
                for name in mine:
                    if name in theirs and mine[name] != theirs[name]:
                        yield other["line"], f"{name} is {theirs[name]} when it first steps, the old one's {mine[name]}"


def _rates(new: Observed, found: Sequence[Difference]) -> Iterator[Cause]:
    first = next((one for one in found if one.what == "rate" and one.key != "mode" and one.step > 0), None)
    if first is not None:
        for note in new.notes.get("made", []):
            if note["what"] == "scheduler":
                yield note["line"], f"after {first.step} steps, {first.said}"


def _loss(old: Observed, ranks: list[Observed], found: Sequence[Difference], source: Source) -> Iterator[Cause]:
    first = next((one for one in found if one.what == "loss"), None)
    if first is None:
        return
    ratio = _ratio(
        [loss.value for loss in old.losses if loss.step == first.step],
        [statistics.fmean(values) for values in _losses(ranks, first.step)],
    )
    line = source.assignment(first.line)
    if ratio is not None:
        why = f"the loss (mean of the ranks') is {ratio:.4g} times the old one's, and so are its gradients"
        yield line or first.line, why
    elif first.step == 0:
        yield line or first.line, f"the first loss differs already, before any step: {first.said}"


def _losses(ranks: list[Observed], step: int) -> Iterator[list[float]]:
    by_rank = [[loss.value for loss in rank.losses if loss.step == step] for rank in ranks]
    return (list(values) for values in zip(*by_rank, strict=False))


def _gradient(old: Observed, new: Observed, found: Sequence[Difference], source: Source) -> Iterator[Cause]:
    first = next((one for one in found if one.what == "gradient" and one.key != "ranks"), None)
    if first is None or any(one.what == "loss" and one.step <= first.step for one in found):
        return
    pairs = [(a.norm, b.norm) for a, b in zip(old.steps, new.steps, strict=False) if a.step == first.step]
    norms = [(a, b) for a, b in pairs if a is not None and b is not None]
    ratio = _ratio([a for a, _ in norms], [b for _, b in norms])
    said = "losses are the same and gradients are not" + (f": {ratio:.4g} times the old ones" if ratio else "")
    for line in source.having(".grad", "all_reduce"):
        yield line, f"{said}. Is their mean taken here?"
    yield first.line, said


def _seeds(ranks: list[Observed], found: Sequence[Difference]) -> Iterator[Cause]:
    if not any(one.step == 0 and one.what in ("rows", "loss") for one in found):
        return
    seeds: dict[str, set[float]] = {}
    for rank in ranks:
        for note in rank.notes.get("seed", []):
            seeds.setdefault(note["line"], set()).add(note["value"])
    for line, values in seeds.items():
        if len(values) > 1:
            yield line, f"ranks are seeded with {_few(sorted(values))}: what the script draws after this differs"


def _effects(found: Sequence[Difference]) -> Iterator[Cause]:
    """What is printed or written, if nothing that is trained differs before."""
    first = next((one for one in found if one.what in ("printed", "file") and one.line), None)
    if first is not None and not any(one.what in ("loss", "gradient") and one.step <= first.step for one in found):
        yield first.line, first.said


def _ratio(ones: list[float], others: list[float]) -> float | None:
    """The factor between two lists of numbers, if there is one."""
    ratios = [b / a for a, b in zip(ones, others, strict=False) if a]
    if not ratios or max(ratios) - min(ratios) > 1e-3 * abs(max(ratios)):
        return None
    nearest = min((1 / 16, 1 / 8, 1 / 4, 1 / 3, 1 / 2, 2, 3, 4, 8, 16), key=lambda value: abs(value - ratios[0]))
    if len(ratios) < 2 and abs(ratios[0] / nearest - 1) > 1e-3 and abs(ratios[0] - round(ratios[0])) > 1e-3 * ratios[0]:
        return None
    return ratios[0] if abs(ratios[0] - 1) > 1e-3 else None


def _few(values: Sequence[Any]) -> str:
    shown = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in values[:4]]
    return ", ".join(shown) + (", ..." if len(values) > 4 else "")
