"""What the form of a statement says."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .tree import dotted, tail


def bodies(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    """List the blocks of a compound statement, in the order in which they may run."""
    for part in ("body", "handlers", "orelse", "finalbody"):
        for inner in getattr(node, part, ()):
            if isinstance(inner, ast.ExceptHandler):
                yield inner.body
        yield [inner for inner in getattr(node, part, ()) if isinstance(inner, ast.stmt)]


def is_any(case: ast.match_case) -> bool:
    """Tell whether a case of ``match`` takes whatever comes."""
    return isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None and case.guard is None


def is_sum_onto(node: ast.Assign) -> bool:
    """Tell whether an assignment adds to what a name holds: ``total = total + x``."""
    value, target = node.value, node.targets[0]
    adds = isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Add, ast.Sub))
    return adds and bool(dotted(target)) and dotted(value.left) == dotted(target)  # type: ignore[attr-defined]


def is_text(node: ast.expr) -> bool:
    """Tell whether an expression makes a text."""
    if isinstance(node, ast.BinOp):
        return is_text(node.left) or is_text(node.right)
    if isinstance(node, ast.Call):
        return tail(node) in ("str", "repr", "format", "join")
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
