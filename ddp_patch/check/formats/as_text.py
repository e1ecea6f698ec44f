"""Findings for people: one line each, and what it came to."""

from __future__ import annotations

from ...source import place
from ..checking import Reported, Result


def as_text(result: Result) -> str:
    """Write ``path:line:column: CODE message``, what could not be checked, and a summary."""
    shown = [f"{_place(found)}: {found.rule.code} {found.message}" for found in result.findings]
    shown += [f"{problem} (not checked)" for problem in result.problems]
    return "\n".join([*shown, *([""] if shown else []), _summary(result)]) + "\n"


def _place(found: Reported) -> str:
    at = found.place
    return place(found.path, at.line, at.column, at.cell)


def _summary(result: Result) -> str:
    checked = f"{_count(result.files, 'file')}, {_count(result.lines, 'line')} checked"
    if result.findings:
        codes = sorted({found.rule.code for found in result.findings})
        files = len({found.path for found in result.findings})
        what = f"{_count(len(result.findings), 'finding')} in {_count(files, 'file')}"
        hint = f" python -m ddp_patch check --explain {codes[0]} explains the first rule." if len(codes) else ""
    else:
        what, hint = "nothing found" if result.files else "nothing checked", ""
    left = f"; {_count(len(result.problems), 'problem')} kept files from being checked" if result.problems else ""
    return f"{what}; {checked}{left}.{hint}"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
