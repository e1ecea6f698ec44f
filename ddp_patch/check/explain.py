"""What the rules say about themselves: ``--list`` and ``--explain``."""

from __future__ import annotations

from pathlib import Path

from .rule import Rule
from .table import table

# docs/ stands beside the package in a checkout; an installed package has the rule's own words.
_PAGES = Path(__file__).parents[2] / "docs" / "rules"


def listed() -> str:
    """Write one line for each rule."""
    width = max(len(rule.name) for rule in table().values())
    return "".join(f"{rule.code}  {rule.name:<{width}}  {rule.summary}\n" for rule in table().values())


def explained(rule: Rule) -> str:
    """Write a rule's page: bad, why, good."""
    page = _PAGES / f"{rule.code}.md"
    if page.is_file():
        return page.read_text(encoding="utf-8")
    return f"# {rule.code} {rule.name}\n\n{rule.summary}.\n\n{rule.why}\n"
