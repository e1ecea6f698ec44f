"""A batch size is that of one process: N processes take N times as many rows for one step."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ...source import Facts, Kind, dotted
from ..literals import brief, number, string
from ..rule import Finding, Rule, World

_EVALUATES = re.compile(r"(val|test|eval|dev)", re.I)


def find(facts: Facts) -> Iterator[Finding]:
    """Find the batch size of loaders that are trained on."""
    trained = [loop.loader for loop in facts.batch_loops if loop.trains and loop.loader is not None]
    names = {dotted(loader) for loader in trained} | set(_pulled(facts))
    for call in facts.calls("torch.utils.data.DataLoader"):
        size = facts.argument(call, "batch_size", 1)
        if size is None or number(size) == 1 or not _is_trained(facts, call, names):
            continue
        yield Finding(
            size,
            f"batch_size={brief(facts, size)} is that of the whole batch",
            "each rank loads as many, so a step sees N times the rows, and the learning rate no longer fits",
            f"Write batch_size={brief(facts, size, 30)} // dist.get_world_size(), or scale the learning rate.",
        )


def _pulled(facts: Facts) -> Iterator[str]:
    """Name the loaders that a training loop pulls from: ``it = iter(loader)``, ``next(it)``, ``it.next()``."""
    for call in (*facts.calls("next"), *facts.methods("next")):
        source = call.args[0].value if call.args else call.func.value if isinstance(call.func, cst.Attribute) else None
        name = dotted(source) if source is not None else None
        loop = facts.tree.enclosing(call, cst.For, cst.While)
        variable = facts.scopes.find(name, facts.scopes.of(call)) if name is not None else None
        if loop is None or variable is None or not facts.trains_in(loop):
            continue
        for value in variable.values:
            if isinstance(value.node, cst.Call) and facts.name(value.node.func) == "iter" and value.node.args:
                yield dotted(value.node.args[0].value) or ""


def _is_trained(facts: Facts, call: cst.Call, names: set[str | None]) -> bool:
    name = facts.assigned(call)
    entry = facts.tree.enclosing(call, cst.DictElement)
    if name is None or (entry is not None and _EVALUATES.match(string(entry.key) or "")):
        return False
    if name in names:
        return True
    passed = [variable for variable in facts.scopes.all() if variable.name in names and variable.parameter]
    return any(
        dotted(value.node) == name for variable in passed for value in variable.values
    ) and Kind.LOADER in facts.kinds(call)


RULE = Rule("DDP114", "batch-size", "The batch size of a training loader is the whole batch's", find, (World.PLAIN,))
