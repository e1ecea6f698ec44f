"""Multiplying by the number of devices counts them twice once each has a process of its own."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts, dotted
from ..literals import brief
from ..rule import Finding, Rule, World


def find(facts: Facts) -> Iterator[Finding]:
    """Find products with ``torch.cuda.device_count()``, or with a variable that holds it."""
    counted = {
        variable.name
        for variable in facts.scopes.all()
        for value in variable.values
        if isinstance(value.node, cst.Call) and facts.name(value.node.func) == "torch.cuda.device_count"
    }
    for node in facts.tree.all(cst.BinaryOperation):
        if isinstance(node.operator, cst.Multiply) and any(
            _is_count(facts, side, counted) and _is_size(facts, other)
            for side, other in ((node.left, node.right), (node.right, node.left))
        ):
            yield Finding(
                node,
                f"{brief(facts, node)} multiplies by the number of devices",
                "each process has one device and takes this for itself: N times N in all",
                "Write it without the factor.",
            )


def _is_count(facts: Facts, node: cst.BaseExpression, counted: set[str]) -> bool:
    called = facts.name(node.func) if isinstance(node, cst.Call) else None
    inner = node.args[-1].value if isinstance(node, cst.Call) and called == "max" and node.args else None
    return (
        called == "torch.cuda.device_count"
        or dotted(node) in counted
        or (inner is not None and _is_count(facts, inner, counted))
    )


def _is_size(facts: Facts, node: cst.BaseExpression) -> bool:
    return any(word in facts.code(node).lower() for word in ("batch", "bs", "lr", "learning_rate"))


RULE = Rule(
    "DDP142",
    "device-count",
    "A batch size or rate is multiplied by the number of devices",
    find,
    (World.PLAIN,),
    training=False,
)
