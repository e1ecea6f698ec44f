"""Code cells of a notebook, with IPython's own syntax put aside so that the rest is Python."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

_MARK = "pass  # ipython: "
# %magic, !command, ?help, help?, name = !command and name = %magic. A "% b" or "!= b" continues a line.
_LINE = re.compile(
    r"(?P<indent>[ \t]*)(?P<rest>(?:[%?]\S|![ \t]*[^\s=]|[\w.,\[\] ]+=\s*(?:%|![ \t]*)\w).*|[\w.]+\?{1,2}\s*)$"
)


@dataclass(frozen=True)
class Cell:
    """A code cell."""

    number: int  # from 1, counting code cells
    index: int  # in the notebook's list of cells
    text: str


class NotANotebook(ValueError):
    """A file with the name of a notebook that is none."""


def cells(content: str) -> list[Cell]:
    """List the code cells of a notebook in nbformat 4 or 3.

    Raises:
        NotANotebook: with the reason.
    """
    try:
        notebook = json.loads(content)
        listed = notebook["cells"] if "cells" in notebook else notebook["worksheets"][0]["cells"]
        code = [(index, cell) for index, cell in enumerate(listed) if cell["cell_type"] == "code"]
        texts = [(index, _joined(cell.get("source", cell.get("input", "")))) for index, cell in code]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise NotANotebook(f"this is not a Jupyter notebook: {type(error).__name__}: {error}") from None
    return [Cell(number, index, text) for number, (index, text) in enumerate(texts, start=1)]


def mask(text: str) -> str:
    """Replace lines of IPython's own by ``pass`` with the line in a comment, so that line numbers hold.

    A cell that begins with ``%%`` is all its magic's: every line of it is masked, unless the magic runs Python.
    """
    lines = text.split("\n")
    first = next((line for line in lines if line.strip()), "")
    runs_python = first.startswith(("%%time", "%%capture", "%%prun"))
    if first.startswith("%%") and not runs_python:
        return "\n".join(_MARK + line for line in lines)
    masked, continues = [], False
    for line in lines:
        match = _LINE.match(line)
        if continues:
            masked.append(_MARK + line)
            continues = line.rstrip().endswith("\\")
        elif match:
            masked.append(f"{match['indent']}{_MARK}{match['rest']}")
            continues = line.rstrip().endswith("\\")
        else:
            masked.append(line)
    return "\n".join(masked)


def unmask(text: str) -> str:
    """Put back what ``mask`` put aside."""
    return "\n".join(
        line.replace(_MARK, "", 1) if line.lstrip().startswith(_MARK) else line for line in text.split("\n")
    )


def is_put_aside(line: str, magic: str = "") -> bool:
    """Tell whether a line is IPython's own, and begins so."""
    return line.lstrip().startswith(_MARK + magic)


def _joined(source: str | list[str]) -> str:
    return source if isinstance(source, str) else "".join(source)
