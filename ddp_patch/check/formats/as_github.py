"""Findings as commands that GitHub Actions shows beside the lines."""

from __future__ import annotations

from ..checking import Result


def as_github(result: Result) -> str:
    """Write ``::warning file=...,line=...::message`` for findings and ``::error`` for what could not be checked."""
    shown = []
    for found in result.findings:
        at, cell = found.place, ""
        where = {"file": found.path}
        if at.cell is None:  # lines of a cell are not lines of the notebook's file
            where |= {"line": str(at.line), "col": str(at.column), "endLine": str(at.end_line)}
            # GitHub takes endColumn only where the end is on the same line.
            where |= {"endColumn": str(at.end_column)} if at.end_line == at.line else {}
        else:
            cell = f"cell {at.cell}, line {at.line}: "
        where["title"] = f"{found.rule.code} {found.rule.name}"
        shown.append(_command("warning", where, f"{cell}{found.message}"))
    for problem in result.problems:
        where = {"file": problem.path, **({"line": str(problem.line)} if problem.line and not problem.cell else {})}
        cell = f"cell {problem.cell}, line {problem.line}: " if problem.cell else ""
        shown.append(_command("error", where, f"{cell}not checked: {problem.reason}"))
    return "".join(f"{line}\n" for line in shown)


def _command(kind: str, where: dict[str, str], message: str) -> str:
    properties = ",".join(f"{name}={_property(value)}" for name, value in where.items())
    return f"::{kind} {properties}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
