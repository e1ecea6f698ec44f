"""Where expressions in f-strings stand: before Python 3.12 ``ast`` gives them positions that mean nothing."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Iterator

_TOKEN = re.compile(rb"#[^\n]*|([a-zA-Z]*)(\"\"\"|'''|\"|')((?:\\.|(?!\2).)*)\2", re.DOTALL)
_INNER = re.compile(rb"(\"\"\"|'''|\"|').*?\1", re.DOTALL)
_SHOWN = re.compile(rb"=\s*[}!:]")  # `{x=}`


def place(tree: ast.AST, data: bytes, starts: list[int]) -> None:
    """Give every expression in an f-string its position, in bytes.

    Raises:
        SyntaxError: for an f-string that is read otherwise than Python does.
    """
    specs: set[ast.AST] = set()  # what stands behind the colons
    for string in ast.walk(tree):
        if isinstance(string, ast.JoinedStr) and string not in specs:
            values = list(_values(string, specs))
            first, last = starts[string.lineno - 1] + string.col_offset, starts[(string.end_lineno or 0) - 1]
            found = list(_fields(data, first, last + (string.end_col_offset or 0)))
            texts = [ast.parse(b"(" + data[start:end] + b")", mode="eval").body for start, end in found]
            if list(map(ast.dump, values)) != list(map(ast.dump, texts)):
                raise SyntaxError("an f-string that cannot be read", (None, string.lineno, None, None))
            for value, text, (start, _) in zip(values, texts, found, strict=True):
                for node, read in zip(ast.walk(value), ast.walk(text), strict=True):
                    if isinstance(node, (ast.expr, ast.keyword, ast.arg)):
                        _move(node, read, start, starts)


def _move(node: ast.AST, read: ast.AST, start: int, starts: list[int]) -> None:
    row = bisect_right(starts, start) - 1
    for line, column in (("lineno", "col_offset"), ("end_lineno", "end_col_offset")):
        below = getattr(read, line) - 1
        setattr(node, line, row + 1 + below)
        setattr(node, column, getattr(read, column) + (0 if below else start - starts[row] - 1))


def _values(string: ast.JoinedStr, specs: set[ast.AST]) -> Iterator[ast.expr]:
    for part in string.values:
        if isinstance(part, ast.FormattedValue):
            yield part.value
            if isinstance(part.format_spec, ast.JoinedStr):
                specs.add(part.format_spec)
                yield from _values(part.format_spec, specs)


def _fields(data: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Give where the expressions of a string begin and end, which may be several tokens: ``"a" f"{b}"``."""
    for token in _TOKEN.finditer(data, start, end):
        kind = (token[1] or b"").lower()
        at, depth = token.start(3), 0  # behind so many colons
        while b"f" in kind and at < token.end(3):
            if not depth and data[at : at + 2] in (b"{{", b"}}"):
                at += 2
            elif b"r" not in kind and data.startswith(rb"\N{", at):
                at = data.index(b"}", at) + 1
            elif data[at : at + 1] == b"{":
                stop = _stop(data, at + 1)
                yield at + 1, stop
                at = next(i for i in range(stop, token.end(3)) if data[i : i + 1] in b"}:") + 1
                depth += data[at - 1 : at] == b":"
            else:
                depth -= data[at : at + 1] == b"}"
                at += 1


def _stop(data: bytes, at: int) -> int:
    """Find the end of an expression in braces."""
    depth = 0  # of brackets
    while True:
        sign = data[at : at + 1]
        if not depth and (sign in b"}:" or _SHOWN.match(data, at) or (sign == b"!" and data[at + 1 : at + 2] != b"=")):
            return at
        depth += (sign in b"([{") - (sign in b")]}")
        inner = _INNER.match(data, at)
        at = inner.end() if inner else at + 1
