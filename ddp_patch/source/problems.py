"""What kept a file, or a part of it, from being read: said by name, while the other files go on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Problem:
    """Something that could not be read. ``str(problem)`` is the line to show."""

    path: str
    line: int  # from 1; 0 where no line is meant
    column: int  # from 1; 0 where no column is meant
    kind: str  # missing, empty, unreadable, not-text, python2, syntax, notebook, too-large, crashed
    reason: str  # what was found, and what to do about it
    cell: int | None = None  # of a notebook, from 1, counting code cells

    def __str__(self) -> str:
        """Write the line to show."""
        return f"{place(self.path, self.line, self.column, self.cell)}: {self.reason}"


def place(path: str, line: int, column: int, cell: int | None) -> str:
    """Name a place as editors and terminals understand it: ``path:line:column``, or ``path:cell 3:line:column``."""
    numbers = [str(number) for number in (line, column) if number]
    return ":".join([path, *([f"cell {cell}"] if cell else []), *numbers])
