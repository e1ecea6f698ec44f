"""What loops gather over their batches: where it begins, and whether ranks can each gather a part."""

from __future__ import annotations

import ast

from .bindings import Bindings
from .flow import Accumulation
from .script import Script
from .statements import is_sum_onto
from .tree import dotted, keyword, tail
from .values import Kind


def is_updated(found: Accumulation) -> bool:
    """Tell whether something is gathered by ``update`` alone."""
    first = found.statements[0]
    return isinstance(first, ast.Expr) and all(
        tail(s.value) == "update" for s in found.statements if isinstance(s, ast.Expr)
    )


def is_meter(bindings: Bindings, found: Accumulation) -> bool:
    """Tell whether something is a meter that this file defines, with a sum and a count."""
    first = found.statements[0]
    if not (is_updated(found) and isinstance(first, ast.Expr) and isinstance(first.value, ast.Call)):
        return False
    assert isinstance(first.value.func, ast.Attribute)
    owner = first.value.func.value
    made = bindings.class_made(owner) or bindings.class_beside(owner)
    if made is None:
        return False
    names = {dotted(n) for n in ast.walk(made) if isinstance(n, ast.Attribute)}
    return {"self.sum", "self.count", "self.avg"} <= names


def begins_here(script: Script, loop: ast.For, name: str) -> bool:
    """Tell whether a name is set anew before each run of the loop."""
    node: ast.AST = loop
    for outer in script.above(loop):
        for body in (getattr(outer, part, None) for part in ("body", "orelse", "finalbody")):
            if isinstance(body, list) and node in body:
                for earlier in reversed(body[: body.index(node)]):
                    if _adds_to(earlier, name):
                        return False
                    if name in stored_in(earlier):
                        return True
        if isinstance(outer, (ast.For, ast.While, ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
        node = outer
    return False


def _adds_to(statement: ast.stmt, name: str) -> bool:
    """Tell whether a statement adds to what a name holds, as an earlier loop does."""
    return any(
        (isinstance(n, ast.AugAssign) and dotted(n.target) == name)
        or (isinstance(n, ast.Assign) and is_sum_onto(n) and dotted(n.targets[0]) == name)
        or (isinstance(n, ast.Call) and tail(n) in ("append", "extend") and dotted(n.func).rpartition(".")[0] == name)
        for n in ast.walk(statement)
    )


def is_after(script: Script, node: ast.Name | ast.Attribute, loop: ast.For) -> bool:
    """Tell whether a name is read after a loop, and still holds what the loop left in it."""
    if not isinstance(node.ctx, ast.Load) or node.lineno <= (loop.end_lineno or 0):
        return False
    if script.function(node) is not script.function(loop):
        return False
    name = dotted(node)
    between = range((loop.end_lineno or 0) + 1, node.lineno + 1)
    return not any(
        isinstance(n.ctx, ast.Store) and n.lineno in between and dotted(n) == name
        for n in script.all(ast.Name, ast.Attribute)
        if not isinstance(script.parents[n], ast.AugAssign)
    )


def number_of_batch(loop: ast.For) -> tuple[str, ast.expr | None]:
    """Find the name that ``enumerate`` numbers batches by, and what it starts from; no name where it does not."""
    if not (isinstance(loop.iter, ast.Call) and tail(loop.iter) == "enumerate" and isinstance(loop.target, ast.Tuple)):
        return "", None
    name = loop.target.elts[0]
    return (name.id if isinstance(name, ast.Name) else ""), keyword(loop.iter, "start", 1)


def left_over(script: Script, loop: ast.For, over: ast.expr) -> str:
    """Find a name that a loop sets, and that is read after it: a rank that has no batch does not have it."""
    number = number_of_batch(loop)[0] if dotted(over) else ""  # it is written anew, by the loader's name
    stored = {n.id for n in ast.walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)} - {number}
    for node in script.all(ast.Name):
        if node.id not in stored or not is_after(script, node, loop):
            continue
        begun = begins_here(script, loop, node.id)
        asked = isinstance(script.parents[node], ast.Attribute)  # a tensor is, where there was a batch
        if not begun or (asked and tail(script.parents[node]) not in ("append", "extend")):
            return str(node.id)
    return ""


def is_of_around(script: Script, bindings: Bindings, found: Accumulation) -> bool:
    """Tell whether a loop in a function gathers into what a function around it, or the module, has."""
    function, first = script.function(found.loop), found.statements[0]
    if function is None or found.name.startswith("self."):
        return False
    first_call = first.value if isinstance(first, ast.Expr) and isinstance(first.value, ast.Call) else None
    named = first_call.func.value if first_call is not None and isinstance(first_call.func, ast.Attribute) else None
    if named is None:
        named = first.targets[0] if isinstance(first, ast.Assign) else getattr(first, "target", None)
    key = bindings.key(named) if named is not None else None
    if key is None or key[0] is function:
        return False
    return key[0] is not None or is_updated(found)


def unshared(script: Script, bindings: Bindings, found: Accumulation) -> str:
    """Tell why what an evaluation gathers cannot be put together from the ranks' parts; nothing if it can."""
    value = found.value
    if is_of_around(script, bindings, found):
        return "is of the function around"
    if is_updated(found):
        return "" if is_meter(bindings, found) or "torchmetrics" in script.text else "is fed with its rows"
    if value.kind is Kind.OTHER:
        return value.reason
    if not begins_here(script, found.loop, found.name):
        return "goes on from an earlier loop"
    return "holds its rows" if value.kind in (Kind.ROWS, Kind.COLS) and not value.listed else ""


def stored_in(statement: ast.stmt) -> set[str]:
    """List the names that a statement sets anew."""
    return {
        dotted(n)
        for n in ast.walk(statement)
        if isinstance(n, (ast.Name, ast.Attribute)) and isinstance(n.ctx, ast.Store)
    } - ({dotted(statement.target)} if isinstance(statement, ast.AugAssign) else set())
