"""Let samplers draw another order in every epoch."""

from __future__ import annotations

import ast

from ..loaders import Loader
from ..plan import Plan
from ..tree import dotted, keyword, tail

_CALL = "call sampler.set_epoch(epoch) before each epoch, or every epoch has the same order"

AGAIN = "another order in every epoch"
_EPOCHS = ("epoch", "ep", "i_epoch", "epoch_i")


def apply(plan: Plan, loader: Loader) -> None:
    """Call ``set_epoch`` before each epoch of a loader's training, or say that it has to be."""
    for loop in loader.loops:
        if plan.trains(loop):
            over = _below_a_bar(plan, loop, plan.flow.loader_loops[loop])
            if not _is_named(over) or not _set_epoch(plan, loop, over, 0):
                plan.script.todo(loop, _CALL)
    if not any(plan.trains(loop) for loop in loader.loops) and not _count_up(plan, loader):
        plan.script.todo(loader.call, _CALL)


def _is_named(over: ast.expr) -> bool:
    return bool(dotted(over.value if isinstance(over, ast.Subscript) else over))


def _count_up(plan: Plan, loader: Loader) -> bool:
    """Count the epochs of a loader that batches are pulled from: each ``iter(loader)`` begins one."""
    begun = [c for c in plan.script.calls() if isinstance(c.func, ast.Name) and c.func.id == "iter" and c.args]
    begun = [c for c in begun if loader.node in plan.flow.loader_calls(c.args[0]) and plan.in_training(c)]
    for call in begun:
        code = plan.script.code(call.args[0])
        if not dotted(call.args[0]) or not isinstance(plan.script.statement(call), (ast.Assign, ast.Expr)):
            return False
        sampler = f"{code}.sampler"
        plan.script.before(call, f"{sampler}.set_epoch({sampler}.epoch + 1)  # {AGAIN}")
    return bool(begun)


def _differ(plan: Plan, loader: ast.expr) -> bool:
    """Tell whether callers give loaders of which some have no sampler of ours."""
    made = [plan.loaders[call] for call in plan.flow.loader_calls(loader) if call in plan.loaders]
    return len(made) > 1 and any(keyword(one.call, "batch_sampler") is not None or not one.shuffles for one in made)


def _below_a_bar(plan: Plan, loop: ast.For, over: ast.expr) -> ast.expr:
    """Find the loader of ``bar = tqdm(loader)``."""
    for node in plan.script.all(ast.Assign):
        if plan.script.function(node) is plan.script.function(loop) and dotted(node.targets[0]) == dotted(over):
            value = node.value
            while isinstance(value, ast.Call) and tail(value) in ("tqdm", "enumerate", "iter") and value.args:
                value = value.args[0]
            if value is not node.value and dotted(value):
                return value  # type: ignore[no-any-return]
    return over


def _numbers(loop: ast.For) -> bool:
    """Tell whether a loop sets a number, as an epoch's is, where ``for phase in ("train", "val")`` has a text."""
    over = loop.iter
    while isinstance(over, ast.Call) and tail(over) == "tqdm" and over.args:
        over = over.args[0]
    counts = isinstance(over, ast.Call) and tail(over) in ("range", "trange", "count")
    return isinstance(loop.target, ast.Name) and (counts or loop.target.id in _EPOCHS)


def _set_epoch(plan: Plan, node: ast.AST, loader: ast.expr, depth: int) -> bool:
    """Write ``set_epoch`` where both the loader and a number of the epoch have names."""
    script = plan.script
    function = script.function(node)
    epoch = None
    for outer in script.above(node):
        if outer is function:
            break
        if isinstance(outer, ast.For) and outer not in plan.flow.loader_loops and _numbers(outer):
            epoch = dotted(outer.target)
            break
    if epoch is None and function is not None:
        epoch = next((a.arg for a in function.args.args if a.arg in _EPOCHS), None)
    if epoch is not None:
        line = f"{script.code(loader)}.sampler.set_epoch({epoch})  # {AGAIN}"
        if (node, line) not in plan.epochs:
            plan.epochs.add((node, line))
            if _differ(plan, loader):
                script.before(node, f"if isinstance({script.code(loader)}.sampler, DistributedSampler):", f"    {line}")
            else:
                script.before(node, line)
        return True
    if function is None or depth > 4:
        return False
    done = False
    for call in plan.bindings.callers.get(function, ()):
        argument = plan.bindings.arguments(call, function).get(dotted(loader), loader)
        if dotted(argument) and _set_epoch(plan, call, argument, depth + 1):
            done = True
    return done
