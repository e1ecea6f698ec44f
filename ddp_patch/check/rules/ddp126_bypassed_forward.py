"""``model.module.loss(x)`` goes around DDP's forward, which is what arms the averaging of gradients."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import OF_ROWS, Facts, Kind, dotted
from ..literals import brief
from ..rule import Finding, Rule


def find(facts: Facts) -> Iterator[Finding]:
    """Find calls through ``.module`` on a batch, where gradients are taken."""
    for call in facts.tree.all(cst.Call):
        inner = call.func if isinstance(call.func, cst.Attribute) else None
        while inner is not None and inner.attr.value != "module":
            inner = inner.value if isinstance(inner.value, cst.Attribute) else None
        if inner is None or not facts.kinds(inner.value) & {Kind.DDP, Kind.DATA_PARALLEL}:
            continue
        argument_kinds = [facts.kinds(argument.value) for argument in call.args]
        if any(kinds & OF_ROWS for kinds in argument_kinds) and _takes_gradients(facts, call):
            yield Finding(
                call,
                f"{brief(facts, call)} goes around the wrapper's forward",
                "its gradients are not averaged: every rank trains a model of its own",
                "Write a forward that does it: model(x, loss=True), say.",
            )


def _takes_gradients(facts: Facts, call: cst.Call) -> bool:
    for outer in facts.tree.ancestors(call):
        if isinstance(outer, cst.With) and any(_needs_none(item.item) for item in outer.items):
            return False
        if isinstance(outer, cst.FunctionDef):
            if any(_needs_none(each.decorator) for each in outer.decorators):
                return False
            return facts.trains_in(outer.body)
    return facts.trains


def _needs_none(node: cst.BaseExpression) -> bool:
    """``torch.no_grad()`` and ``torch.inference_mode()``, as contexts and decorators."""
    name = dotted(node.func if isinstance(node, cst.Call) else node) or ""
    return "no_grad" in name or "inference_mode" in name


RULE = Rule(
    "DDP126", "bypassed-forward", "A model is called through .module where gradients are taken", find, training=False
)
