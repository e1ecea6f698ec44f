"""Sets of strings have another order in each process: what is numbered by it is put in order first."""

from __future__ import annotations

import ast
import re

from ..plan import Plan
from ..tree import dotted, keyword, tail

_TEXT = re.compile(r"split\(|join\(|lower\(|read|word|token|char|text|sentence|vocab|name|string", re.I)
_MADE, _METHODS = {"set", "frozenset"}, {"union", "intersection", "difference", "symmetric_difference"}
_NO_ORDER = {"sorted", "len", "set", "frozenset", "sum", "any", "all", "max", "min"}
_JOINING = (ast.BitOr, ast.BitAnd, ast.BitXor, ast.Sub)


def apply(plan: Plan) -> None:
    """Put sets in order where their order is used."""
    script = plan.script
    for call in script.calls():
        if isinstance(call.func, ast.Name) and call.func.id in ("list", "tuple") and len(call.args) == 1:
            if call.func.id == "list" and _is_of_texts(plan, call.args[0]):
                script.replace(call.func, "sorted")
            elif not _is_orderless(plan, call):
                _sort(plan, call.args[0])
        elif tail(call) == "enumerate" and call.args:
            _sort(plan, call.args[0])
    for loop in script.all(ast.For, ast.comprehension):
        if isinstance(loop, ast.For) or not _is_orderless(plan, script.parents[loop]):
            _sort(plan, loop.iter)


def _is_orderless(plan: Plan, node: ast.AST) -> bool:
    """Tell whether what is made of a set has no order either, or another one."""
    return isinstance(node, ast.SetComp) or tail(plan.script.parents[node]) in _NO_ORDER


def _sort(plan: Plan, node: ast.expr) -> None:
    if not _is_of_texts(plan, node) and not _is_set(plan, node, 0):
        return
    start, end = plan.script.span(node)
    order = "sorted" if _is_of_texts(plan, node) else plan.use("in_order")
    plan.script.put(start, start, f"{order}(")
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


def _is_set(plan: Plan, node: ast.AST, depth: int) -> bool:
    """Tell whether an expression is a set, of which nobody knows that it holds numbers."""
    if isinstance(node, (ast.Name, ast.Attribute)):
        key = plan.bindings.key(node)
        values = [
            n.value
            for n in plan.script.all(ast.Assign, ast.AnnAssign)
            for target in (n.targets if isinstance(n, ast.Assign) else [n.target])
            if n.value is not None and dotted(target) == dotted(node) and plan.bindings.key(target) == key
        ]
        return depth < 3 and any(_is_set(plan, v, depth + 1) for v in [*values, *plan.bindings.origins(node)])
    if isinstance(node, ast.BinOp) and isinstance(node.op, _JOINING):
        return _is_set(plan, node.left, depth) or _is_set(plan, node.right, depth)
    if isinstance(node, ast.Set):
        return not all(isinstance(e, ast.Constant) and isinstance(e.value, (int, float)) for e in node.elts)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in _METHODS
    if isinstance(node, ast.Call) and tail(node) in _MADE:
        return tail(keyword(node, "", 0)) not in ("range", "parameters", "modules")
    return isinstance(node, ast.SetComp)
