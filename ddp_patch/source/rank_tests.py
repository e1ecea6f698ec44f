"""Tests on the rank in the trees of Python's own parser, by names alone: ``guards`` asks the file's facts as well."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from .kinds import SPAWNS
from .ranks import is_same_on_all, mirrored, names_one_rank, names_rank

_OPERATORS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}  # of those that have a direction
_NAMED = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)


def is_rank_test(test: ast.AST, rank_names: Collection[str]) -> bool:
    """Tell whether a condition differs between ranks, by its names and by variables that hold a rank or a test."""
    stack = [test]
    while stack:
        part = stack.pop()
        if isinstance(part, _NAMED) and (names_rank(_key(part) or dotted(part)) or dotted(part) in rank_names):
            return True
        if not (isinstance(part, ast.Compare) and _is_same_on_all(part)):
            stack.extend(ast.iter_child_nodes(part))
    return False


def _is_same_on_all(test: ast.Compare) -> bool:
    """``rank == -1`` and ``rank >= 0`` ask whether there are ranks, which is the same on all of them."""
    if len(test.ops) > 1:
        return False
    operator = _OPERATORS.get(type(test.ops[0]), "==")
    return is_same_on_all(operator, test.comparators[0]) or is_same_on_all(mirrored(operator), test.left)


def holding(tree: ast.Module) -> set[str]:
    """Name the variables that hold a test on the rank, ``first = rank == 0``, or what a spawned function is given."""
    found = {*_spawned(tree)} - {""}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and (_is_flag(node.value) or dotted(node.value) in found):
            found.update(name for name in map(dotted, node.targets) if name)
    return found


def _spawned(tree: ast.Module) -> Iterator[str]:
    """``mp.spawn(work)`` calls ``work(i)``: its first parameter is the rank."""
    functions: dict[str, str] = {}
    started: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            functions[node.name] = next((each.arg for each in node.args.args if each.arg not in ("self", "cls")), "")
        elif isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in SPAWNS:
            targets = [*node.args[:1], *(each.value for each in node.keywords if each.arg == "fn")]
            started += [dotted(each).rpartition(".")[2] for each in targets]
    yield from (functions[name] for name in started if name in functions)


def _is_flag(node: ast.expr) -> bool:
    if isinstance(node, ast.BoolOp):
        return any(map(_is_flag, node.values))
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not) and _is_flag(node.operand)
    return is_rank_test(node, ()) if isinstance(node, ast.Compare) else names_one_rank(dotted(node))


def _key(node: ast.AST) -> str:
    """Give what is asked for in ``os.environ.get("RANK", 0)`` and ``os.getenv("RANK")``."""
    if not isinstance(node, ast.Call) or dotted(node.func).rpartition(".")[2] not in ("get", "getenv"):
        return ""
    asked = node.args[0] if node.args else None
    return asked.value if isinstance(asked, ast.Constant) and isinstance(asked.value, str) else ""


def dotted(node: ast.AST) -> str:
    """Write what is named or called as it stands; for ``config["rank"]`` what it is kept under."""
    if isinstance(node, ast.Call):
        return dotted(node.func)
    if isinstance(node, ast.Subscript):
        return node.slice.value if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str) else ""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts))
