"""What a literal argument says."""

from __future__ import annotations

import ast

import libcst as cst

from ..source import Facts


def string(node: cst.CSTNode | None) -> str | None:
    """Give the text of a string literal; None for anything else."""
    if not isinstance(node, (cst.SimpleString, cst.ConcatenatedString)):
        return None
    value = node.evaluated_value
    return value if isinstance(value, str) else None


def number(node: cst.CSTNode | None) -> int | None:
    """Give the value of an integer literal; None for anything else."""
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        value = number(node.expression)
        return None if value is None else -value
    return int(ast.literal_eval(node.value)) if isinstance(node, cst.Integer) else None


def is_true(node: cst.CSTNode | None) -> bool:
    """Tell whether an argument is the literal True."""
    return isinstance(node, cst.Name) and node.value == "True"


def is_false(node: cst.CSTNode | None) -> bool:
    """Tell whether an argument is the literal False."""
    return isinstance(node, cst.Name) and node.value == "False"


def is_zero(node: cst.CSTNode | None) -> bool:
    """Tell whether an argument is the literal 0 or 0.0."""
    return isinstance(node, (cst.Integer, cst.Float)) and float(ast.literal_eval(node.value)) == 0


def brief(facts: Facts, node: cst.CSTNode, most: int = 60) -> str:
    """Write a node as it stands, on one line, shortened where it is long."""
    text = facts.code(node)
    return text if len(text) <= most else f"{text[: most - 3]}..."
