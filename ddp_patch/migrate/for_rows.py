"""What a dataset does for one of its rows: files of it are this rank's, and read again."""

from __future__ import annotations

import ast

from .script import Script
from .tree import Function, dotted, tail

_ROWS = ("__getitem__", "__getitems__")


def for_rows(script: Script) -> set[ast.AST]:
    """List the functions that datasets and collate functions call, and what these call, by their names."""
    by_name: dict[str, list[Function]] = {}
    for function in (*script.all(ast.FunctionDef), *script.all(ast.AsyncFunctionDef)):
        by_name.setdefault(function.name, []).append(function)
    names = [*_ROWS, *_collating(script)]
    found: set[ast.AST] = set()
    for row in script.all(ast.ClassDef):
        if any("Iterable" in tail(base) or "IterDataPipe" in tail(base) for base in row.bases):
            found |= {n for n in row.body if isinstance(n, ast.FunctionDef) and n.name == "__iter__"}
    found |= {function for name in names for function in by_name.get(name, ())}
    left = list(found)
    while left:
        for call in (node for node in ast.walk(left.pop()) if isinstance(node, ast.Call)):
            called = [f for f in by_name.get(tail(call), ()) if _may_be(script, call, f, len(by_name[f.name]) == 1)]
            left += [function for function in called if function not in found]
            found.update(called)
    return found


def _may_be(script: Script, call: ast.Call, function: Function, is_only: bool) -> bool:
    """Tell whether a call is one of a function: by its name, or of what this object has."""
    around = script.parents[function]
    if isinstance(call.func, ast.Name):
        return not isinstance(around, ast.ClassDef)
    if not dotted(call.func).startswith("self."):
        return False
    return is_only or (dotted(call.func).count(".") == 1 and around in set(script.above(call)))


def _collating(script: Script) -> list[str]:
    """Name what loaders are given as ``collate_fn``."""
    functions = (k.value for call in script.calls() for k in call.keywords if k.arg == "collate_fn")
    return [value.id for value in functions if isinstance(value, ast.Name)]
