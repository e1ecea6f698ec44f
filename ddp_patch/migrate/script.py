"""A script under change: its tree, and edits by position, so that all that is not changed keeps every byte."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from .parts import Part
from .tree import Tree

MARK = "# TODO(ddp): "


@dataclass(frozen=True)
class Todo:
    """Something that a person has to decide."""

    line: int  # of the script as it was read
    reason: str


@dataclass(eq=False)
class Script(Tree):
    """One parsed script, and what is to be changed in it."""

    todos: list[Todo] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin without a change."""
        super().__post_init__()
        self._edits: list[tuple[int, int, int, str]] = []
        self._replaced: list[tuple[int, int]] = []
        self._said: set[tuple[int, str]] = set()
        self._split: set[ast.stmt] = set()

    def split(self, statement: ast.stmt) -> bool:
        """Give a statement a line of its own: ``a; b``; tells whether it can have one."""
        block = self.block(statement)
        first = next((s for s in block if s.lineno == statement.lineno), statement)
        at = block.index(statement)
        if self.statement(first) is not first or at == 0 or statement in self._split:
            return statement in self._split
        self._split.add(statement)
        end, start = self.span(block[at - 1])[1], self.span(statement)[0]
        self.put(end, start, f"{self.newline}{self.indent(statement)}")
        return True

    def is_split(self, statement: ast.stmt) -> bool:
        """Tell whether a statement was given a line of its own."""
        return statement in self._split

    def replace(self, node: ast.AST, text: str) -> None:
        """Write something in a node's place; what was replaced before stays."""
        self.put(*self.span(node), text)

    def put(self, start: int, end: int, text: str) -> None:
        """Replace bytes, unless an edit is there already."""
        if any(a < end and start < b for a, b in self._replaced if start != end):
            return
        if start != end:
            self._replaced.append((start, end))
        self._edits.append((start, end, len(self._edits), text))

    def is_replaced(self, node: ast.AST) -> bool:
        """Tell whether an edit covers a node."""
        start, end = self.span(node)
        return any(a <= start and end <= b for a, b in self._replaced)

    def substitute(self, nodes: dict[ast.AST, str]) -> None:
        """Write other names in the places of expressions, the outer ones first."""
        for node, text in nodes.items():
            self.replace(node, text)

    def before(self, node: ast.AST, *lines: str) -> None:
        """Write lines above a statement and the comment that belongs to it."""
        if node in self._split:
            text = "".join(f"{line}{self.newline}{self.indent(node)}" for line in lines)
            start = self.span(node)[0]
            self._edits.append((start, start, len(self._edits), text))
            return
        statement = self.statement(node)
        row = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))]) - 1
        indent = self.indent(statement)
        while row > 0 and self.lines[row - 1].startswith(f"{indent}#".encode()) and not _is_cell(self.lines[row - 1]):
            row -= 1
        self._insert(self.starts[row], indent, lines)

    def directly_before(self, node: ast.AST, *lines: str) -> None:
        """Write lines above a statement, below its comment."""
        statement = self.statement(node)
        self._insert(self.starts[statement.lineno - 1], self.indent(statement), lines)

    def after(self, node: ast.AST, *lines: str, first: bool = False) -> None:
        """Write lines below a statement; ``first``: above what is written before the next one."""
        statement = self.statement(node)
        end = self.starts[statement.end_lineno]  # type: ignore[index]
        if end == len(self.data) and not self.data.endswith(b"\n"):
            lines = ("", *lines)
        self._insert(end, self.indent(statement), lines, -1 if first else None)

    def before_text(self, line: str, part: Part) -> None:
        """Write a line at the top, below the interpreter's and the encoding's."""
        row = part.first
        while row < min(part.first + 2, len(self.lines)) and re.match(rb"#!|#.*coding[:=]", self.lines[row]):
            row += 1
        self._insert(self.starts[row], "", [line, ""] if self.lines[row].strip() else [line])

    def _insert(self, at: int, indent: str, lines: Sequence[str], order: int | None = None) -> None:
        text = "".join(f"{indent}{line}".rstrip() + self.newline if line else self.newline for line in lines)
        self._edits.append((at, at, len(self._edits) if order is None else order, text))

    def delete(self, statement: ast.stmt, comments: bool = True) -> None:
        """Take a statement out, and with it the blocks that it leaves empty."""
        block, parent = self.block(statement), self.parents[statement]
        left = [s for s in block if s is not statement and not self._is_deleted(s)]
        if not left and not isinstance(parent, ast.Module):
            if isinstance(parent, ast.If) and block is parent.body and not parent.orelse:
                self.delete(parent)
            else:
                self.replace(statement, "pass")
            return
        start, end = self._line_span(statement, comments)
        self.put(start, end, "")

    def _is_deleted(self, statement: ast.stmt) -> bool:
        return self.is_replaced(statement)

    def _line_span(self, statement: ast.stmt, comments: bool = True) -> tuple[int, int]:
        start, end = self.span(statement)
        line_start, line_end = self.starts[statement.lineno - 1], self.starts[statement.end_lineno]  # type: ignore[index]
        if self.data[line_start:start].strip():  # `a; b`: the second
            return start - (len(self.data[:start]) - len(self.data[:start].rstrip(b"; \t"))), end
        rest = self.data[end:line_end].strip()
        if rest.startswith(b";"):
            return start, end + len(self.data[end:line_end]) - len(self.data[end:line_end].lstrip(b"; \t"))
        row = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))]) - 1
        _ = comments
        return self.starts[row], line_end

    def guard(self, first: ast.stmt, last: ast.stmt, test: str) -> None:
        """Put statements under an ``if``."""
        rows = range(first.lineno - 1, last.end_lineno)  # type: ignore[arg-type]
        inside_strings = self.rows_in_strings()
        self._insert(self.starts[first.lineno - 1], self.indent(first), [f"if {test}:"])
        for row in rows:
            if row not in inside_strings and self.lines[row].strip():
                self._edits.append((self.starts[row], self.starts[row], len(self._edits), self.part(first).unit))

    def put_rows(self, first: int, after: int, text: str) -> None:
        """Replace whole rows."""
        self.put(self.starts[first], self.starts[after], text)

    def note(self, node: ast.stmt, comment: str) -> None:
        """Write a comment above a statement, once."""
        if (node.lineno, comment) not in self._said:
            self._said.add((node.lineno, comment))
            self.directly_before(node, comment)

    def todo(self, node: ast.AST, reason: str) -> None:
        """Leave a note above a statement, and list it."""
        statement = self.statement(node)
        if (statement.lineno, reason) in self._said:
            return
        self._said.add((statement.lineno, reason))
        self.todos.append(Todo(statement.lineno, reason))
        self.directly_before(statement, MARK + reason)

    def result(self) -> str:
        """Give the text with all edits made."""
        data = self.data
        for start, end, _, text in sorted(self._edits, key=lambda e: (e[0], e[1] > e[0], e[2]), reverse=True):
            data = data[:start] + text.encode() + data[end:]
        return data.decode()


def _is_cell(line: bytes) -> bool:
    return line.startswith((b"# %%", b"# In[", b"#%%"))
