"""Checkpoints: written once and whole, read to this rank's device, with or without ``module.`` in their keys."""

from __future__ import annotations

import ast

from ..for_rows import for_rows
from ..plan import Plan
from ..tree import dotted, keyword, tail


def apply(plan: Plan, reads: bool = False, loads: bool = True) -> None:
    """Rewrite ``torch.save``, ``torch.load`` and ``load_state_dict``.

    Args:
        plan: of the file.
        reads: another file reads what is saved.
        loads: ``torch.load`` gets this rank's device.
    """
    script = plan.script
    rows = for_rows(script)
    streams = {
        item.optional_vars.id
        for node in script.all(ast.With)
        for item in node.items
        if isinstance(item.optional_vars, ast.Name)
    }
    reads = reads or any(dotted(call.func) == "torch.load" for call in script.calls())
    for node in script.all(ast.With) if reads else ():
        if any(dotted(getattr(n, "func", None)) == "torch.save" for n in ast.walk(node)) and any(
            tail(item.context_expr) == "open" for item in node.items
        ):
            script.after(node, plan.dialect.barrier)
    for call in script.calls():
        name = dotted(call.func)
        if (
            name == "torch.save"
            and len(call.args) >= 2
            and not (isinstance(call.args[1], ast.Name) and call.args[1].id in streams)
            and rows.isdisjoint(script.above(call))
        ):
            script.replace(call.func, plan.use("save_once"))
            if reads:
                plan.helpers.add("barrier")
                if _by_file(plan, call):
                    end = script.span([*call.args, *call.keywords][-1])[1]
                    script.put(end, end, ", wait=False")
        elif name == "torch.load" and loads and keyword(call, "map_location", 1) is None and call.args:
            end = script.span([*call.args, *call.keywords][-1])[1]
            script.put(end, end, f", map_location={plan.dialect.home}")
        elif tail(call) == "load_state_dict" and isinstance(call.func, ast.Attribute) and call.args:
            owner = call.func.value
            if plan.is_model(owner) and plan.was_wrapped:
                start, end = script.span(call.args[0])
                script.put(start, start, f"{plan.use('plain_keys')}(")
                script.put(end, end, ")")


def _by_file(plan: Plan, node: ast.AST) -> bool:
    """Tell whether a file decides about a line, which is there already for a rank that comes late."""
    return any(
        isinstance(outer, ast.If) and any(tail(n) in ("exists", "isfile", "isdir") for n in ast.walk(outer.test))
        for outer in plan.script.above(node)
    )
