"""Gradient accumulation without ``no_sync`` averages gradients in every backward, though one in k would do."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts, Kind
from ..literals import brief
from ..rule import Finding, Rule


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``if (i + 1) % k == 0: optimizer.step()`` beside a backward in every round."""
    if facts.methods("accumulate") or facts.says("no_sync", "require_backward_grad_sync"):
        return
    for node in facts.tree.all(cst.If):
        loop = facts.batch_loop(node)
        if loop is None or not _counts(facts, node.test):
            continue
        steps = [call for call in facts.tree.within(node.body, cst.Call) if _is_step(facts, call)]
        outside = [
            call
            for call in facts.tree.within(loop.node, cst.Call)
            if _is(call, "backward") and not facts.tree.inside(call, node)
        ]
        others = [
            call
            for call in facts.tree.within(loop.node, cst.Call)
            if _is_step(facts, call) and not facts.tree.inside(call, node)
        ]
        if steps and outside and not others:
            yield Finding(
                node.test,
                f"the optimizer steps only if {brief(facts, node.test)}",
                "every backward averages the gradients of all ranks, though only the last one before a step has to",
                "Write with model.no_sync(): around the others' forward and backward.",
            )


def _counts(facts: Facts, test: cst.CSTNode) -> bool:
    return any(isinstance(node.operator, cst.Modulo) for node in facts.tree.within(test, cst.BinaryOperation))


def _is_step(facts: Facts, call: cst.Call) -> bool:
    return (
        isinstance(call.func, cst.Attribute)
        and _is(call, "step")
        and (
            Kind.OPTIMIZER in facts.kinds(call.func.value)
            or bool(call.args and Kind.OPTIMIZER in facts.kinds(call.args[0].value))
        )
    )


def _is(call: cst.Call, name: str) -> bool:
    return isinstance(call.func, cst.Attribute) and call.func.attr.value == name


RULE = Rule("DDP127", "accumulation", "Gradients are accumulated without no_sync", find)
