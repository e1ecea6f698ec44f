"""What every rank takes whole is alike: an evaluation that each of them does."""

from __future__ import annotations

import ast

from ..loaders import Loader, explicit_sampler
from ..plan import Plan
from ..tree import keyword, tail
from .draws import is_draw

SAMPLERS = {"WeightedRandomSampler", "RandomSampler", "SubsetRandomSampler"}  # they take a generator
_NOTE = "# every rank takes all of it"
_OTHER_ROWS = (
    "ranks draw other rows here, and may decide differently: draw them from a generator of its own, seeded alike"
)


def apply(plan: Plan, loader: Loader) -> None:
    """Let every rank take all rows of a loader, in an order that is alike."""
    call = loader.call
    plan.script.note(plan.script.statement(call), f"{_NOTE}: {loader.whole}")
    if loader.foreign:
        return
    shuffle = keyword(call, "shuffle", 2)
    if shuffle is not None and not (isinstance(shuffle, ast.Constant) and not shuffle.value):
        _draw_alike(plan, call)
    sampler = explicit_sampler(plan.script, call)
    if sampler is None:
        return
    for made in [sampler] if isinstance(sampler, ast.Call) else plan.bindings.origins(sampler):
        definition = plan.bindings.class_called(made)
        if definition is not None and any(is_draw(plan, c) for c in ast.walk(definition) if isinstance(c, ast.Call)):
            plan.script.todo(made, _OTHER_ROWS)
        elif tail(made) in SAMPLERS:
            _draw_alike(plan, made)


def _draw_alike(plan: Plan, call: ast.Call) -> None:
    """Give what draws a generator that is alike on every rank, unless it has one."""
    if call not in plan.alike and keyword(call, "generator") is None:
        plan.alike.add(call)
        end = plan.script.span([*call.args, *call.keywords][-1])[1]
        plan.script.put(end, end, f", generator={plan.use('alike')}()")
