"""A parsed script, to look at."""

from __future__ import annotations

import ast
import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .f_strings import place
from .parts import Part, parts_of

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(eq=False)
class Tree:
    """The nodes of a script, and where they stand. Positions are bytes: ``ast`` counts columns so."""

    text: str

    def __post_init__(self) -> None:
        """Parse the text."""
        self.data = self.text.encode()
        self.tree = ast.parse(self.text)  # not the bytes: they would be decoded by a coding cookie once more
        self.parents: dict[ast.AST, ast.AST] = {}
        self.nodes: list[ast.AST] = []  # in the order of the text, as far as it matters: parents first
        self.of_type: dict[type, list[ast.AST]] = {}
        stack: list[ast.AST] = [self.tree]
        while stack:
            node = stack.pop()
            self.nodes.append(node)
            self.of_type.setdefault(type(node), []).append(node)
            children = list(ast.iter_child_nodes(node))
            for child in children:
                self.parents[child] = node
            stack.extend(reversed(children))
        self.lines = self.data.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))
        if sys.version_info < (3, 12):
            place(self.tree, self.data, self.starts)
        self.parts = parts_of(self.lines, self.tree)
        self.newline = "\r\n" if self.data.count(b"\r\n") > self.data.count(b"\n") / 2 else "\n"

    def all(self, *kinds: type[ast.AST]) -> Iterator[Any]:
        """Give all nodes of these types, in the order of the text."""
        for kind in kinds:
            yield from self.of_type.get(kind, ())

    def calls(self) -> list[ast.Call]:
        """List all calls."""
        return self.of_type.get(ast.Call, [])  # type: ignore[return-value]

    def part(self, node: ast.AST) -> Part:
        """Find the file that a node stands in."""
        row = getattr(node, "lineno", 1) - 1
        return next((part for part in reversed(self.parts) if part.first <= row), self.parts[0])

    def code(self, node: ast.AST) -> str:
        """Give the text of a node."""
        start, end = self.span(node)
        return self.data[start:end].decode()

    def operand(self, node: ast.expr, place: ast.AST) -> str:
        """Give the text of an expression for the place of another: in brackets if operators are in it and around."""
        made = isinstance(node, (ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.Lambda))
        around = isinstance(self.parents[place], (ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.Attribute))
        return f"({self.code(node)})" if made and around else self.code(node)

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Give where a node begins and ends."""
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])  # type: ignore[attr-defined]
        start = self.starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        if first != node.lineno:  # type: ignore[attr-defined]
            start = self.starts[first - 1] + len(self.indent(node).encode())
        return start, self.starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Give what a node stands in, innermost first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def function(self, node: ast.AST) -> Function | None:
        """Find the function that a node stands in."""
        found = next((n for n in self.above(node) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))), None)
        return found

    def statement(self, node: ast.AST) -> ast.stmt:
        """Find the statement that a node stands in, which has lines of its own."""
        for inner in (node, *self.above(node)):
            if isinstance(inner, ast.stmt):
                first = next(s for s in self.block(inner) if s.lineno == inner.lineno)  # `a; b`
                if not self.data[self.starts[first.lineno - 1] :][: first.col_offset].strip():
                    return first
        raise AssertionError("a module is no statement")

    def block(self, statement: ast.AST) -> list[ast.stmt]:
        """Find the list of statements that a statement is one of."""
        parent = self.parents[statement]
        for name in ("body", "orelse", "finalbody"):
            found = getattr(parent, name, None)
            if isinstance(found, list) and statement in found:
                return found
        return [statement]  # type: ignore[list-item]

    def indent(self, node: ast.AST) -> str:
        """Give the white space before a statement's line."""
        line = self.lines[node.lineno - 1]  # type: ignore[attr-defined]
        return line[: len(line) - len(line.lstrip(b" \t"))].decode()

    def rows_in_strings(self) -> set[int]:
        """Give the rows, from 0, that begin inside of a string."""
        return {
            row
            for node in self.all(ast.Constant, ast.JoinedStr)
            if isinstance(node, ast.JoinedStr) or isinstance(node.value, (str, bytes))
            for row in range(node.lineno, node.end_lineno)
        }

    def rest_of_line(self, statement: ast.stmt) -> bytes:
        """Give what stands behind a statement in its last row."""
        end = self.span(statement)[1]
        return self.data[end : self.starts[statement.end_lineno or 0]].strip()

    def line_of(self, statement: ast.stmt) -> int:
        """Give the row, from 0, in which a statement begins, with its decorators."""
        rows: list[int] = [statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))]
        return min(rows) - 1


def lines_of(text: str) -> list[str]:
    """Cut at line ends only, and keep them: str.splitlines also cuts at form feeds and U+2028, which end no line."""
    return list(io.StringIO(text, newline=""))


def dotted(node: ast.AST | None) -> str:
    """Write a name with its attributes: ``self.model``; nothing for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = dotted(node.value)
        return f"{head}.{node.attr}" if head else ""
    return ""


def tail(node: ast.AST | None) -> str:
    """Give the last part of what is called or named: ``DataLoader`` for ``data.DataLoader``."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def keyword(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """Find an argument by name, or by position."""
    for argument in call.keywords:
        if argument.arg == name:
            return argument.value
    if position is not None and len(call.args) > position:
        return call.args[position]
    return None
