"""A count of one rank's rows, divided by the size of the whole dataset, is 1/N of the metric."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts, Kind, dotted
from ..literals import brief
from ..rule import Finding, Rule
from ..sharding import is_of_rows, ranks_differ


def find(facts: Facts) -> Iterator[Finding]:
    """Find divisions of what was counted in batches by ``len(loader.dataset)``."""
    for node in facts.tree.all(cst.BinaryOperation, cst.AugAssign):
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Divide):
            counted, by = node.left, node.right
        elif isinstance(node, cst.AugAssign) and isinstance(node.operator, cst.DivideAssign):
            counted, by = node.target, node.value
        else:
            continue
        whole = _dataset_size(facts, by)
        if whole is None or not is_of_rows(facts, counted) or not ranks_differ(facts, node):
            continue
        yield Finding(
            node,
            f"{brief(facts, counted)} is divided by {whole}",
            "it counts this rank's rows only, so the result is 1/N of the metric",
            f"Write dist.all_reduce of {brief(facts, counted)} as a tensor before dividing.",
        )


def _dataset_size(facts: Facts, node: cst.BaseExpression) -> str | None:
    calls = facts.tree.within(node, cst.Call)
    for call in calls:
        if dotted(call.func) == "len" and call.args and Kind.DATASET in facts.kinds(call.args[0].value):
            return facts.code(call)
    return None


RULE = Rule("DDP102", "metric-over-dataset", "A rank's count is divided by the size of the whole dataset", find)
