"""Draws: a rank draws for its own rows, so the numbers are not those of one process; it is said where that happens."""

from __future__ import annotations

import ast

from ..plan import Plan
from ..tree import Function, dotted, tail

DRAWN = "# each rank draws its own, so not the numbers that one process draws"
SAMPLED = "# drawn alike on all ranks, but not as one process draws"
_TORCH = {
    *("rand", "randn", "randint", "randperm", "bernoulli", "multinomial", "normal", "rand_like", "randn_like"),
    *("randint_like", "poisson"),
}
_METHODS = {"normal_", "uniform_", "bernoulli_", "random_", "exponential_", "rsample", "sample"}


def apply(plan: Plan) -> None:
    """Write a comment above what is drawn while a model is trained, once in each function."""
    if not plan.is_fed:
        return  # all ranks draw the same
    done: set[Function | None] = set()
    reached = _reached(plan)
    for call in plan.script.calls():
        function = plan.script.function(call)
        if function not in done and is_draw(plan, call) and (_trains(plan, call) or function in reached):
            done.add(function)
            plan.script.note(plan.script.statement(call), DRAWN)


def is_draw(plan: Plan, call: ast.Call) -> bool:
    """Tell whether a call draws random numbers from a generator that all share."""
    head, _, name = dotted(call.func).rpartition(".")
    if head == "torch":
        return name in _TORCH and not any(k.arg == "generator" for k in call.keywords)
    if head in ("np.random", "numpy.random", "random"):
        return name not in ("seed", "RandomState", "default_rng", "Random", "getstate", "setstate")
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    if owner is None or tail(call) not in _METHODS:
        return False
    made = "".join(tail(c) for c in plan.bindings.origins(owner)) + dotted(owner).lower() + tail(owner)
    return tail(call) not in ("sample", "rsample") or any(
        word in made for word in ("dist", "Normal", "Beta", "Categor")
    )


def _trains(plan: Plan, node: ast.AST) -> bool:
    loop = plan.loop_of(node)
    if loop is not None or not plan.is_pulled:
        return loop is not None and plan.trains(loop)
    outer = next((n for n in plan.script.above(node) if isinstance(n, (ast.For, ast.While))), None)
    return outer is not None and outer not in plan.flow.loader_loops and plan.trains(outer)


def _reached(plan: Plan) -> set[Function]:
    """List the functions that training runs: called in its loops, or of a model, or of a dataset."""
    found: set[Function] = set()
    for owner in plan.bindings.classes.values():
        bases = {tail(base) for base in owner.bases}
        if bases & {"Module", "Dataset"}:
            found |= {f for f in owner.body if isinstance(f, ast.FunctionDef) and f.name not in ("__init__", "__len__")}
            found -= {f for f in found if f.name.startswith(("init", "reset"))}
    for call in plan.script.calls():
        callee = plan.bindings.callee(call)
        if callee is not None and _trains(plan, call) and callee.name != "__init__":
            found.add(callee)
    while True:
        inner = {plan.bindings.callee(c) for c in plan.script.calls() if plan.script.function(c) in found}
        more = {f for f in inner if f is not None and f.name != "__init__"} - found
        if not more:
            return found
        found |= more
