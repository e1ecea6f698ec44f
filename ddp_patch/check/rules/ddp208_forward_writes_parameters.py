"""A forward that writes to its parameters is not tried on rows, and runs on whole batches."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts, dotted
from ..literals import brief
from ..rule import Finding, Rule, World
from .ddp205_forward_reads_values import in_forward

_WRITES = ("copy_", "mul_", "add_", "div_", "clamp_", "fill_", "zero_", "normal_", "renorm_", "sub_")


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``self.weight.data = ...`` and ``self.weight.data.copy_(...)`` in the ``forward`` of a module."""
    for node in facts.tree.all(cst.Assign):
        if _is_data(node.targets[0].target) and in_forward(facts, node):
            yield _finding(facts, node)
    for call in facts.methods(*_WRITES):
        if isinstance(call.func, cst.Attribute) and _is_data(call.func.value) and in_forward(facts, call):
            yield _finding(facts, call)


def _is_data(node: cst.CSTNode) -> bool:
    inner = node.value if isinstance(node, cst.Subscript) else node
    name = dotted(inner) or ""
    return name.startswith("self.") and name.endswith(".data")


def _finding(facts: Facts, node: cst.CSTNode) -> Finding:
    return Finding(
        node,
        f"{brief(facts, node)} writes to a parameter in a forward",
        "this module runs on whole batches, on every rank: exact, and no faster than one process",
        "Write it outside of forward, under torch.no_grad(), or use torch.nn.utils.parametrize.",
    )


RULE = Rule(
    "DDP208",
    "forward-writes-parameters",
    "A forward writes to its parameters",
    find,
    (World.PLAIN, World.DDP_PATCH),
    training=False,
)
