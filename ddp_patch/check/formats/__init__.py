"""How findings are shown: for people, for programs, for code scanning, for GitHub's logs."""

from collections.abc import Callable

from ..checking import Result
from .as_github import as_github
from .as_json import as_json
from .as_sarif import as_sarif
from .as_text import as_text

FORMATS: dict[str, Callable[[Result], str]] = {
    "text": as_text,
    "json": as_json,
    "sarif": as_sarif,
    "github": as_github,
}

__all__ = ["FORMATS"]
