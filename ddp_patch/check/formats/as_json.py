"""Findings for programs."""

from __future__ import annotations

import dataclasses
import json

from ..checking import Result


def as_json(result: Result) -> str:
    """Write one object: ``findings``, ``problems`` and what was checked."""
    findings = [
        {
            "path": found.path,
            "code": found.rule.code,
            "name": found.rule.name,
            "message": found.message,
            **dataclasses.asdict(found.place),
            "summary": found.rule.summary,
        }
        for found in result.findings
    ]
    problems = [dataclasses.asdict(problem) for problem in result.problems]
    whole = {"findings": findings, "problems": problems, "files": result.files, "lines": result.lines}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"
