"""Findings in SARIF 2.1.0, which code scanning services and editors read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...source import Problem, SourceRange
from ...version import __version__
from ..checking import Reported, Result
from ..explain import explained
from ..table import table

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def as_sarif(result: Result) -> str:
    """Write one run: every rule, every result with its region, and what could not be checked as notifications."""
    codes = list(table())
    rules = [
        {
            "id": rule.code,
            "name": "".join(word.capitalize() for word in rule.name.split("-")),
            "shortDescription": {"text": rule.summary},
            "fullDescription": {"text": rule.why},
            "help": {"text": rule.why, "markdown": explained(rule)},
            "defaultConfiguration": {"level": "warning"},
        }
        for rule in table().values()
    ]
    driver = {"name": "ddp_patch check", "semanticVersion": __version__, "rules": rules}
    invocation = {
        "executionSuccessful": not result.problems,
        "toolExecutionNotifications": [_notification(problem) for problem in result.problems],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [invocation],
        "results": [_result(found, codes.index(found.rule.code)) for found in result.findings],
    }
    whole = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _result(found: Reported, index: int) -> dict[str, Any]:
    cell = f"cell {found.place.cell}, line {found.place.line}: " if found.place.cell else ""
    location = {"physicalLocation": {"artifactLocation": {"uri": _uri(found.path)}, **_region(found.place)}}
    return {
        "ruleId": found.rule.code,
        "ruleIndex": index,
        "level": "warning",
        "message": {"text": f"{cell}{found.message}"},
        "locations": [location],
    }


def _region(place: SourceRange) -> dict[str, Any]:
    if place.cell is not None:  # lines of a cell are not lines of the notebook's file
        return {}
    region = {
        "startLine": place.line,
        "startColumn": place.column,
        "endLine": place.end_line,
        "endColumn": place.end_column,
    }
    return {"region": region}


def _notification(problem: Problem) -> dict[str, Any]:
    region = {"region": {"startLine": problem.line}} if problem.line and problem.cell is None else {}
    location = {"physicalLocation": {"artifactLocation": {"uri": _uri(problem.path)}, **region}}
    return {
        "level": "error",
        "message": {
            "text": f"cell {problem.cell}, line {problem.line}: {problem.reason}" if problem.cell else problem.reason
        },
        "descriptor": {"id": problem.kind},
        "locations": [location],
    }


def _uri(path: str) -> str:
    return Path(path).as_uri() if Path(path).is_absolute() else quote(Path(path).as_posix())
