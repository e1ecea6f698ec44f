"""The result in words: a few lines for the terminal, Markdown and JSON for the rest."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Sequence
from typing import Any

import torch

from ..version import __version__
from .difference import Difference
from .observed import Observed
from .tensors import noise
from .tolerance import Tolerance
from .verdict import Verdict

_SHOWN = 10
_CAUSES = 3
_TAIL = 25  # lines of a script that failed


def summary(verdicts: Sequence[Verdict], script: str) -> str:
    """Say what came out, for the terminal."""
    return "\n".join(line for verdict in verdicts for line in _summary(verdict, script)) + "\n"


def _summary(verdict: Verdict, script: str) -> list[str]:
    lines = [f"{script} on {verdict.title}: {verdict.word}" + (f" - {verdict.why}" if verdict.why else "")]
    if verdict.alone is not None and not verdict.alone.failed and not verdict.alone.is_empty:
        lines.append(f"  compared: {compared(verdict.alone)}")
    lines.extend(f"  held still: {what}" for what in verdict.still if verdict.word != "same")
    first = verdict.first
    if first is not None:
        lines.append(f"  first difference: {described(first)}")
        lines.extend(f"  also: {described(found)}" for found in _one_of_each(verdict.differences)[1:4])
    if first is None and verdict.before and verdict.word != "same":
        lines.append(f"  as it runs: {described(verdict.before[0])}")
    lines.extend(f"  look at {line}: {why}" for line, why in verdict.causes[:_CAUSES])
    if verdict.float64:
        lines.append(f"  float64: {verdict.float64}")
    lines.extend(f"  varies by itself, not compared: {what}" for what in verdict.varies[:_SHOWN])
    lines.extend(f"  note: {what}" for what in verdict.notes)
    failed = _failed(verdict)
    if failed is not None:
        lines.extend(f"  | {line}" for line in failed.stderr.strip().splitlines()[-_TAIL:])
    return lines


def _failed(verdict: Verdict) -> Observed | None:
    return next((seen for seen in (verdict.alone, verdict.ranks) if seen is not None and seen.failed), None)


def described(found: Difference) -> str:
    """One difference in words."""
    where = f"{found.line}, " if found.line else ""
    return f"{where}after {found.step} step{'s' if found.step != 1 else ''}: {_WORDS[found.what]}{found.said}"


_WORDS = {
    "end": "",
    "rows": "",
    "loss": "",
    "gradient": "",
    "rate": "",
    "count": "",
    "printed": "printed ",
    "weights": "",
    "file": "file ",
}


def _one_of_each(differences: Sequence[Difference]) -> list[Difference]:
    return list({found.what: found for found in reversed(differences)}.values())[::-1]


def compared(seen: Observed) -> str:
    """Count what was compared."""
    left_out = noise(seen, Tolerance(seen.dtype))
    numbers = sum(len(said.numbers) for said in (*seen.out, *seen.err))
    values = sum(tensor.numel() for name, tensor in seen.tensors.items() if name not in left_out)
    counts = (
        (numbers, "printed number"),
        (len(seen.losses), "loss", "losses"),
        (len(seen.steps), "optimizer step"),
        (values, "weight and buffer value"),
        (len(seen.files), "file"),
    )
    return ", ".join(_counted(*entry) for entry in counts)


def _counted(count: int, word: str, plural: str = "") -> str:
    return f"{count:,} {word if count == 1 else plural or word + 's'}"


def markdown(verdicts: Sequence[Verdict], command: str) -> str:
    """The whole report."""
    parts = [f"# ddp_patch verify\n\n`{command}`\n"]
    parts.append(f"ddp_patch {__version__}, torch {torch.__version__}, Python {platform.python_version()}\n")
    parts.extend(_section(verdict) for verdict in verdicts)
    return "\n".join(parts)


def _section(verdict: Verdict) -> str:
    lines = [f"## {verdict.title}: {verdict.word}\n"]
    if verdict.why:
        lines.append(f"{verdict.why[0].upper()}{verdict.why[1:]}.\n")
    if verdict.alone is not None:
        lines.append(f"Compared: {compared(verdict.alone)}.\n")
    lines.extend(_listed("Lines to look at", [f"`{line}`: {why}" for line, why in verdict.causes[:_CAUSES]]))
    if verdict.differences:
        lines.append("### Where they differ\n")
        lines.extend(_table(verdict.differences))
    if verdict.float64:
        lines.append(f"Float64: {verdict.float64}.\n")
    lines.extend(_listed("Held still in both runs", verdict.still if verdict.before or verdict.differences else []))
    if verdict.before:
        lines.append("### Differences that this explains\n")
        lines.extend(_table(verdict.before))
    lines.extend(_listed("Varies between two runs alone, not compared", [f"`{what}`" for what in verdict.varies]))
    lines.extend(_listed("Notes", verdict.notes))
    if verdict.tolerance:
        lines.append(f"Taken for the same: {verdict.tolerance}.\n")
    failed = _failed(verdict)
    if failed is not None and failed.stderr.strip():
        lines.append("```\n" + "\n".join(failed.stderr.strip().splitlines()[-_TAIL:]) + "\n```\n")
    if verdict.runs:
        lines.append("| run | seconds | end |\n|---|---|---|")
        lines.extend(f"| {name} | {seconds:.1f} | {how} |" for name, seconds, how in verdict.runs)
    return "\n".join(lines) + "\n"


def _listed(title: str, items: Sequence[str]) -> list[str]:
    return [f"### {title}\n", *(f"- {item}" for item in items), ""] if items else []


def _table(differences: Sequence[Difference]) -> list[str]:
    rows = ["| steps before | line | what | times the allowance |", "|---|---|---|---|"]
    for found in differences[:_SHOWN]:
        times = "" if math.isinf(found.times) else f"{found.times:.3g}"
        rows.append(f"| {found.step} | {found.line} | {_cell(_WORDS[found.what] + found.said)} | {times} |")
    left = len(differences) - _SHOWN
    return [*rows, *([f"\nand {left} more"] if left > 0 else []), ""]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def as_json(verdicts: Sequence[Verdict], command: str, code: int) -> str:
    """The result for programs."""
    return (
        json.dumps({"command": command, "exit_code": code, "results": [_plain(v) for v in verdicts]}, indent=1) + "\n"
    )


def _plain(verdict: Verdict) -> dict[str, Any]:
    return {
        "ranks": verdict.title,
        "verdict": verdict.word,
        "why": verdict.why,
        "differences": [_entry(found) for found in verdict.differences],
        "explained": [_entry(found) for found in verdict.before],
        "causes": [{"line": line, "why": why} for line, why in verdict.causes[:_CAUSES]],
        "float64": verdict.float64,
        "held_still": verdict.still,
        "varies": verdict.varies,
        "notes": verdict.notes,
        "tolerance": verdict.tolerance,
        "runs": [{"name": name, "seconds": seconds, "end": how} for name, seconds, how in verdict.runs],
    }


def _entry(found: Difference) -> dict[str, Any]:
    return {
        "what": found.what,
        "of": found.key,
        "step": found.step,
        "line": found.line,
        "said": found.said,
        "times_the_allowance": None if math.isinf(found.times) else found.times,
    }
