"""DDP lists the parameters that need gradients when it is made. What is frozen later, it goes on waiting for."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts
from ..rule import Finding, Rule, World


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``requires_grad = ...`` below ``DistributedDataParallel(...)`` in the same function."""
    wraps = facts.calls("torch.nn.parallel.DistributedDataParallel")
    for node in facts.tree.all(cst.Assign):
        target = node.targets[0].target
        if not isinstance(target, cst.Attribute) or target.attr.value != "requires_grad":
            continue
        if not any(
            isinstance(outer, cst.For) and "param" in facts.code(outer.iter) for outer in facts.tree.ancestors(node)
        ):
            continue
        function = facts.tree.enclosing(node, cst.FunctionDef)
        before = [wrap for wrap in wraps if facts.tree.enclosing(wrap, cst.FunctionDef) is function]
        if before and all(facts.tree.order[wrap] < facts.tree.order[node] for wrap in before):
            yield Finding(
                node,
                f"{facts.code(node)} comes after DistributedDataParallel(...)",
                "DDP has listed the parameters already, and waits for gradients of those that no longer get any",
                "Write it before the module is wrapped.",
            )


RULE = Rule("DDP129", "frozen-after-wrap", "requires_grad changes after DDP was made", find, (World.DDP,))
