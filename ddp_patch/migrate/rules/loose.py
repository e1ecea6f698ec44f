"""Parameters that an optimizer gets one by one, and no wrapped model has: DDP does not average their gradients."""

from __future__ import annotations

import ast

from ..plan import Plan
from ..tree import dotted, tail

_LINES = {
    "ddp": "dist.all_reduce({name}.grad); {name}.grad /= ddp_world_size",
    "accelerate": '{name}.grad = accelerator.reduce({name}.grad, "mean")',
}
_LOOSE = "{name} is of no wrapped model, so each rank would train its own: write {line} after each backward"


def apply(plan: Plan) -> None:
    """Say of each such parameter how its gradient becomes that of all rows."""
    if not plan.is_fed:
        return  # all ranks compute the same
    for optimizer in plan.optimizers:
        found = [n for root in plan.roots(optimizer) for n in ast.walk(root) if _is_loose(plan, n)]
        for name in dict.fromkeys(map(dotted, found)):
            line = _LINES[plan.dialect.name].format(name=name)
            plan.script.todo(optimizer, _LOOSE.format(name=name, line=line))


def _is_loose(plan: Plan, node: ast.AST) -> bool:
    if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
        return False
    owner = plan.bindings.class_of(node) if dotted(node).startswith("self.") else None
    if owner is not None and any(tail(base) == "Module" for base in owner.bases):
        return False
    values = [n.value for n in plan.script.all(ast.Assign) if dotted(node) in map(dotted, n.targets)]
    made = [*plan.bindings.origins(node), *(v for v in values if isinstance(v, ast.Call))]
    return any(
        tail(call) in ("Parameter", "requires_grad_") or any(k.arg == "requires_grad" for k in call.keywords)
        for call in made
    )
