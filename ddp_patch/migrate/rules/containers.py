"""Tuples, dictionaries and comprehensions that hold values of a rank's rows: each value is reduced."""

from __future__ import annotations

import ast

from ..plan import Plan
from ..tree import dotted
from ..values import Kind

REDUCED = {Kind.MEAN: "all_mean", Kind.SUM: "all_sum", Kind.COUNT: "all_sum"}
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def reduced(plan: Plan, leaf: ast.expr, code: str, helper: str) -> str | None:
    """Write a tuple or a dictionary anew, each of its values reduced; nothing for anything else."""
    if items := plan.flow.kind(leaf).items:
        uses = [plan.use(REDUCED[item.kind]) if item.of_rows else "" for item in items]
        parts = [f"{use}({code}[{n}])" if use else f"{code}[{n}]" for n, use in enumerate(uses)]
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    dictionaries = [value for value in _values(plan, leaf) if _is_dictionary(value)]
    if not dictionaries:
        return None
    values = [value for made in dictionaries if isinstance(made, ast.Dict) for value in made.values]
    if helper == "all_sum" and not all(plan.flow.kind(value).of_rows for value in values):
        plan.script.todo(leaf, f"{code} has sums over rows, and what is none: reduce each where it is put there")
    return f"{{key: {helper}(value) for key, value in {code}.items()}}"


def _values(plan: Plan, leaf: ast.expr) -> list[ast.expr]:
    """List what a name is set to, or what is no name."""
    name, function = dotted(leaf), plan.script.function(leaf)
    if not name:
        return [leaf]
    sets = [n for n in plan.script.all(ast.Assign) if plan.script.function(n) is function]
    return [n.value for n in sets if name in map(dotted, n.targets)]


def _is_dictionary(value: ast.expr) -> bool:
    made = isinstance(value, ast.Call) and dotted(value.func) == "dict"
    return made or isinstance(value, (ast.Dict, ast.DictComp))
