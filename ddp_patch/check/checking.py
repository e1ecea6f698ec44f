"""Check one file: its facts once, then every rule that means anything for it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from ..source import Elsewhere, Facts, Problem, Source, SourceRange, facts_of, read
from . import noqa
from .rule import Finding, Rule, world
from .table import table


@dataclass(frozen=True)
class Reported:
    """One finding, as it is shown."""

    path: str
    place: SourceRange
    rule: Rule
    message: str


@dataclass
class Result:
    """What came of some files."""

    findings: list[Reported] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    files: int = 0
    lines: int = 0


def check(path: Path, codes: Collection[str], result: Result, elsewhere: Elsewhere | None = None) -> None:
    """Add what is found in a file to a result.

    Args:
        path: of the file.
        codes: of the rules.
        result: that gets findings and problems.
        elsewhere: what the other files of its programs say.
    """
    source = read(path)
    result.files += 1
    result.lines += sum(len(part.lines) for part in source.parts)
    result.problems += source.problems
    result.findings += check_source(source, codes, elsewhere)


def check_source(source: Source, codes: Collection[str], elsewhere: Elsewhere | None = None) -> list[Reported]:
    """Find what the chosen rules say about a source, in the order of its text, each thing once."""
    facts = facts_of(source, elsewhere)
    if not facts.uses_torch:
        return []
    kind = world(facts)
    found = {
        (facts.tree.order[finding.node], code, finding.found): (rule, finding)
        for code, rule in table().items()
        if code in codes and rule.applies(facts, kind)
        for finding in rule.find(facts)
    }
    reported = []
    for _, (rule, finding) in sorted(found.items(), key=lambda item: item[0]):
        shown = _reported(facts, rule, finding, rule.message(finding, kind))
        if shown is not None:
            reported.append(shown)
    return reported


def _reported(facts: Facts, rule: Rule, finding: Finding, message: str) -> Reported | None:
    place, part = facts.place(finding.node), facts.part(finding.node)
    if noqa.silenced(part.lines, place.line, place.end_line, rule.code):
        return None
    return Reported(str(facts.source.path), place, rule, message)
