"""Sets of strings have another order in each process: what is numbered by it is sorted first."""

from __future__ import annotations

import ast
import re

from ..plan import Plan
from ..tree import dotted, tail

_TEXT = re.compile(r"split\(|join\(|lower\(|read|word|token|char|text|sentence|vocab|name|string", re.I)


def apply(plan: Plan) -> None:
    """Sort sets of texts where their order is used."""
    script = plan.script
    for call in script.calls():
        if isinstance(call.func, ast.Name) and call.func.id in ("list", "tuple") and len(call.args) == 1:
            if _is_of_texts(plan, call.args[0]):
                if call.func.id == "list":
                    script.replace(call.func, "sorted")
                else:
                    _sort(plan, call.args[0])
        elif tail(call) == "enumerate" and call.args and _is_of_texts(plan, call.args[0]):
            _sort(plan, call.args[0])
    for loop in script.all(ast.For, ast.comprehension):
        if _is_of_texts(plan, loop.iter):
            _sort(plan, loop.iter)


def _sort(plan: Plan, node: ast.expr) -> None:
    start, end = plan.script.span(node)
    plan.script.put(start, start, "sorted(")
    plan.script.put(end, end, ")")


def _is_of_texts(plan: Plan, node: ast.expr) -> bool:
    made = [node] if isinstance(node, ast.Call) else plan.bindings.origins(node)
    for call in made:
        if isinstance(call, ast.Call) and dotted(call.func) == "set" and call.args:
            inside = [n for n in ast.walk(call.args[0]) if isinstance(n, (ast.Name, ast.Attribute))]
            more = [c for n in inside for c in plan.bindings.origins(n)]
            if any(_TEXT.search(ast.unparse(n)) for n in [call.args[0], *more]):
                return True
    return False
