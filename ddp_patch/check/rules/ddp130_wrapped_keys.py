"""The keys of a DDP module's state begin with ``module.``: the plain model does not load them."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts, Kind, Variable, dotted
from ..rule import Finding, Rule, World


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``torch.save`` of the ``state_dict()`` of a DDP module."""
    for save in facts.calls("torch.save"):
        for call in facts.tree.within(save, cst.Call):
            if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "state_dict":
                continue
            model = call.func.value
            if (
                Kind.DDP in facts.kinds(model)
                and isinstance(model, (cst.Name, cst.Attribute))
                and _is_wrapped(facts, model, save, set())
            ):
                yield Finding(
                    call,
                    f"{facts.code(call)} is of a DistributedDataParallel module",
                    "its keys begin with 'module.', which the model itself does not load",
                    f"Write {facts.code(model)}.module.state_dict().",
                )


def _is_wrapped(facts: Facts, model: cst.BaseExpression, at: cst.CSTNode, seen: set[Variable]) -> bool:
    """A variable holds a wrapper at this line: not ``raw`` of ``raw = model; model = DDP(model)``."""
    variable = facts.scopes.find(facts.code(model), facts.scopes.of(at))
    if variable is None or variable in seen:
        return variable is None and Kind.DDP in facts.kinds(model)
    seen.add(variable)
    values = [value for value in variable.values if not _is_behind(facts, value.node, at)]
    if any(_unwraps(facts, value.node) for value in values):
        return False
    return any(
        _is_wrapped(facts, value.node, value.node, seen)
        if isinstance(value.node, (cst.Name, cst.Attribute))
        else Kind.DDP in facts.kinds(value.node)
        for value in values
    )


def _is_behind(facts: Facts, node: cst.CSTNode, at: cst.CSTNode) -> bool:
    """It runs after ``at``, in the same function and in no loop around both."""
    if facts.scopes.of(node) is not facts.scopes.of(at) or facts.tree.order[node] < facts.tree.order[at]:
        return False
    loops = [outer for outer in facts.tree.ancestors(at) if isinstance(outer, (cst.For, cst.While))]
    return not any(facts.tree.inside(node, loop) for loop in loops)


def _unwraps(facts: Facts, node: cst.CSTNode) -> bool:
    """``model.module if hasattr(model, "module") else model``, and a function that gives this back."""
    if any(part.attr.value == "module" for part in facts.tree.within(node, cst.Attribute)):
        return True
    name = dotted(node.func) if isinstance(node, cst.Call) else None
    for function in facts.scopes.functions.get((name or "").rpartition(".")[2], ()):
        for returned in facts.tree.within(function.body, cst.Return):
            named = facts.scopes.inside(function).variables.get(dotted(returned.value) or "")
            values = (
                [returned.value, *(value.node for value in named.values)] if named is not None else [returned.value]
            )
            if any(_is_module(value) for value in values):
                return True
    return False


def _is_module(node: cst.CSTNode | None) -> bool:
    parts = (node.body, node.orelse) if isinstance(node, cst.IfExp) else (node,)
    return any(isinstance(part, cst.Attribute) and part.attr.value == "module" for part in parts)


RULE = Rule(
    "DDP130", "wrapped-keys", "The state of a DDP module is saved with its prefix", find, (World.DDP,), training=False
)
