"""A hook on a node of the graph sees the gradient of this rank's rows; one on the tensor sees the batch's."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts
from ..literals import brief
from ..rule import Finding, Rule, World


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``x.grad_fn.register_hook(...)``."""
    for call in facts.methods("register_hook", "register_prehook"):
        node = call.func.value if isinstance(call.func, cst.Attribute) else None
        if isinstance(node, cst.Attribute) and node.attr.value == "grad_fn":
            yield Finding(
                call,
                f"{brief(facts, call)} hooks a node of the graph",
                "it sees the gradient of this rank's rows",
                f"Write {facts.code(node.value)}.register_hook(...), which sees the batch's.",
            )


RULE = Rule("DDP215", "graph-hook", "A hook on a node of the graph", find, (World.PLAIN, World.DDP_PATCH))
