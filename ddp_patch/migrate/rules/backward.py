"""The gradient of the whole batch: DDP averages over ranks, which is right for means and not for sums."""

from __future__ import annotations

import ast

from ..plan import Plan
from ..tree import dotted, tail
from ..values import Kind

_ALONE = (
    "no DataLoader feeds this: every rank computes the same batches. Take this rank's rows of each: "
    "x[{rank} :: {world}]"
)


def apply(plan: Plan) -> None:
    """Look at every loss that is back-propagated."""
    for call in plan.backwards:
        assert isinstance(call.func, ast.Attribute)
        loss = call.func.value
        if isinstance(loss, ast.Call) and tail(loss) == "scale" and loss.args:
            loss = loss.args[0]
        found = plan.flow.kind(loss)
        scaled = False
        match found.kind:
            case Kind.SUM | Kind.COUNT:
                scaled = True
            case Kind.SAME if not _is_fed(plan, call):
                reason = _ALONE.format(rank=plan.dialect.rank, world=plan.dialect.world)
                plan.script.todo(call, reason)
                plan.reasons.add(reason)
            case Kind.OTHER:
                plan.reasons.add(found.reason)
                plan.script.todo(
                    call, f"this loss {found.reason}: DDP's average of the ranks' gradients is another one"
                )
            case Kind.ROWS | Kind.COLS:
                plan.reasons.add("rows")
                plan.script.todo(
                    call, "it cannot be told whether this loss is a mean over rows (right under DDP) or a sum"
                )
        _write(plan, call, loss, scaled)
    _closures(plan)
    _accumulation(plan)


def _is_fed(plan: Plan, call: ast.Call) -> bool:
    return plan.loop_of(call) is not None


def _write(plan: Plan, call: ast.Call, loss: ast.expr, scaled: bool) -> None:
    script = plan.script
    assert isinstance(call.func, ast.Attribute)
    owner = call.func.value
    accelerate = plan.dialect.name == "accelerate"
    if accelerate:
        more = [*call.args, *call.keywords]
        (first, last), (start, end) = script.span(call), script.span(owner)
        script.put(first, start, "accelerator.backward(")
        script.put(end, script.span(more[0])[0] if more else last, ", " if more else ")")
    if scaled:
        start, end = script.span(loss)
        compound = not isinstance(loss, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
        opened = compound or (loss is owner and not accelerate)
        script.put(start, start, "(" if opened else "")
        script.put(
            end, end, f"{')' if compound else ''} * {plan.dialect.world}{')' if opened and not compound else ''}"
        )
        script.before(call, "# a sum over rows, where DDP averages over ranks")


def _closures(plan: Plan) -> None:
    """What an optimizer's closure returns decides its next step, so it must be the same on all ranks."""
    for call in plan.script.calls():
        if tail(call) != "step" or not call.args or not isinstance(call.args[0], ast.Name):
            continue
        function = plan.bindings.functions.get(call.args[0].id)
        if function is None:
            continue
        for node in plan.script.all(ast.Return):
            if plan.script.function(node) is function and node.value is not None:
                value = node.value
                kind = plan.flow.kind(value).kind
                if kind in (Kind.MEAN, Kind.SUM):
                    helper = plan.use("all_mean" if kind is Kind.MEAN else "all_sum")
                    plan.script.replace(value, f"{helper}({plan.script.code(value)})")


def _accumulation(plan: Plan) -> None:
    """Reduce gradients once per optimizer step, where a test on the number of the batch says when that is."""
    script = plan.script
    for loop in plan.flow.loader_loops:
        if not plan.trains(loop):
            continue
        steps = [c for c in ast.walk(loop) if isinstance(c, ast.Call) and tail(c) == "step" and _is_optimizer(plan, c)]
        around = [[n for n in script.above(c) if isinstance(n, ast.If) and loop in script.above(n)] for c in steps]
        if not steps or any(len(tests) != 1 or tests != around[0] for tests in around):
            continue  # an optimizer that steps every time needs its gradients every time
        test, inside = around[0][0].test, {n for s in around[0][0].body for n in ast.walk(s)}
        targets = {n.id for t in [loop.target] for n in ast.walk(t) if isinstance(n, ast.Name)}
        stored = {n.id for n in ast.walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)} - targets
        read = {n.id for n in ast.walk(test) if isinstance(n, ast.Name)}
        if any(_steps(plan, c, steps) and not _in_training_loop(plan, c) for c in script.calls()):
            continue  # what is left behind the last batch: its gradients must be there
        if not inside.issuperset(steps) or not read & targets or read & stored or plan.flow.kind(test).of_rows:
            continue
        for name in plan.used_in.get(loop, []):
            script.before(
                loop.body[0],
                f"{name}.require_backward_grad_sync = {script.code(test)}  # reduce gradients once per step",
            )


def _steps(plan: Plan, call: ast.Call, like: list[ast.Call]) -> bool:
    """Tell whether a call steps an optimizer, known as one or by the name that others have."""
    names = {dotted(c.func) for c in like}
    return tail(call) == "step" and (dotted(call.func) in names or _is_optimizer(plan, call))


def _in_training_loop(plan: Plan, call: ast.Call) -> bool:
    loop = plan.loop_of(call)
    return loop is not None and plan.trains(loop)


def _is_optimizer(plan: Plan, call: ast.Call) -> bool:
    owner = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    made = plan.bindings.origins(owner)
    return any(c in plan.optimizers for c in made) or "optim" in dotted(owner).lower() or dotted(owner) == "scaler"
