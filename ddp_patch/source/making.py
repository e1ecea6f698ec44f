"""Facts of a file, and of a text."""

from __future__ import annotations

from pathlib import Path

from .facts import Facts
from .problems import Problem
from .programs import Elsewhere
from .reading import Part, Source, parse
from .text import Text


def facts_of(source: Source, elsewhere: Elsewhere | None = None) -> Facts:
    """Work out what a file says, as part of the programs whose other files say ``elsewhere``."""
    return Facts(source, elsewhere)


def facts_of_text(content: str) -> Facts:
    """Work out what a text says: for tests, and for what is made up.

    Raises:
        ValueError: for a text that is not Python.
    """
    module = parse(content)
    if isinstance(module, Problem):
        raise ValueError(str(module))  # noqa: TRY004 — it is the text that is wrong
    return Facts(Source(Path("script.py"), Text(content, "utf-8", mark=False), [Part(module, content)]))
