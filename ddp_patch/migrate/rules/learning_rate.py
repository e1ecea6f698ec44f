"""``--batch per-device``: the batch grows with the ranks, and the learning rate with it."""

from __future__ import annotations

import ast

from ..plan import Plan
from ..tree import keyword


def apply(plan: Plan) -> None:
    """Scale every optimizer's learning rate linearly (Goyal et al. 2017, https://arxiv.org/abs/1706.02677)."""
    if not plan.per_device:
        return
    for optimizer in plan.optimizers:
        rate = keyword(optimizer, "lr", 1)
        if rate is None:
            plan.script.todo(
                optimizer, f"the batch is as many times larger as there are ranks: write lr=... * {plan.dialect.world}"
            )
            continue
        simple = isinstance(rate, (ast.Name, ast.Attribute, ast.Constant, ast.Call, ast.Subscript))
        code = plan.script.code(rate)
        plan.script.replace(rate, f"{code if simple else f'({code})'} * {plan.dialect.world}")
