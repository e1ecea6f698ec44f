"""``loader.batch_size`` of a loader that the ranks share is a rank's; what the script makes of it is of all of them."""

from __future__ import annotations

import ast

from ..bindings import Bindings
from ..plan import Plan
from ..script import Script
from ..tree import dotted, tail
from .batches import SHAPED

_EITHER = "{code} may be this rank's share of the batch: where it means all rows, write {code} * {world}"


def apply(plan: Plan, script: Script) -> None:
    """Multiply what is read of the size of a shared loader, where it is not the size of this rank's rows."""
    bindings = Bindings(script, plan.folder)
    for node in script.all(ast.Attribute):
        if node.attr != "batch_size" or not isinstance(node.ctx, ast.Load) or _is_of_rows(script, node):
            continue
        made, code = bindings.makers(node.value), script.code(node)
        shared = [call for call in made if _is_shared(script, call)]
        if shared and (len(shared) < len(made) or any(tail(c) == "rank_loader" for c in shared)):
            script.todo(node, _EITHER.format(code=code, world=plan.dialect.world))
        elif shared:
            alone = isinstance(script.parents[node], (ast.Assign, ast.keyword, ast.Return, ast.Call))
            whole = f"{code} * {plan.dialect.world}"
            script.replace(node, whole if alone else f"({whole})")


def _is_shared(script: Script, call: ast.Call) -> bool:
    if tail(call) == "rank_loader" or "rank_share(" in script.code(call):
        return True
    names = {dotted(k.value) for k in call.keywords if k.arg is None} - {""}
    return any(
        dotted(target.value if isinstance(target, ast.Subscript) else target) in names
        for node in script.all(ast.Assign)
        if "rank_share(" in script.code(node.value)
        for target in node.targets
    )


def _is_of_rows(script: Script, node: ast.AST) -> bool:
    """Tell whether a size is that of a tensor for the rows of a batch: noise, zeros."""
    above = [*script.above(node)]
    inside = any(isinstance(n, (ast.For, ast.While)) for n in above)
    return inside and any(isinstance(n, ast.Call) and tail(n) in SHAPED for n in above)
