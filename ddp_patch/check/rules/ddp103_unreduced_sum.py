"""A sum that is built up over batches holds this rank's share of the loss or metric."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts, Kind, dotted
from ..literals import brief
from ..rule import Finding, Rule
from ..sharding import is_of_rows, ranks_differ


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``total += ...`` of a batch's values, in a loop over a loader, that is never reduced."""
    seen: set[tuple[int, str]] = set()
    for node in facts.tree.all(cst.AugAssign):
        name = dotted(_base(node.target))
        loop = facts.batch_loop(node)
        if name is None or loop is None or not isinstance(node.operator, cst.AddAssign):
            continue
        scope = facts.scopes.of(node)
        variable = facts.scopes.find(name, scope)
        if (
            not is_of_rows(facts, node.value)
            or not ranks_differ(facts, node)
            or variable is None
            or Kind.REDUCED in variable.kinds
            or (id(variable), facts.code(node.target)) in seen
        ):
            continue
        if _is_text(node.value) or "world_size" in facts.code(node.value):
            continue
        if _starts_inside(facts, variable.values, loop.node) or _is_trained(facts, name, node):
            continue
        if _is_place(facts, name, loop.node):
            continue
        shown = facts.code(node.target)
        seen.add((id(variable), shown))
        yield Finding(
            node,
            f"{shown} += {brief(facts, node.value, 40)} adds up over batches and is never reduced",
            "each rank adds its own rows, so what is shown and decided by it is one rank's share",
            f"Write dist.all_reduce of {shown} as a tensor, once, behind the loop: op=dist.ReduceOp.AVG for means, SUM "
            "for counts.",
        )


def _base(target: cst.BaseAssignTargetExpression) -> cst.CSTNode:
    """``sums["loss"]`` is kept in ``sums``; one that is counted by a value of the batch is another for each row."""
    if isinstance(target, cst.Subscript) and len(target.slice) == 1:
        index = target.slice[0].slice
        if isinstance(index, cst.Index) and isinstance(index.value, cst.SimpleString):
            return target.value
    return target


def _is_text(node: cst.BaseExpression) -> bool:
    return isinstance(node, (cst.FormattedString, cst.SimpleString, cst.ConcatenatedString))


def _starts_inside(facts: Facts, values: list, loop: cst.CSTNode) -> bool:  # type: ignore[type-arg]
    """A sum within one batch (``loss += term``) is no metric."""
    starts = [value.statement for value in values if isinstance(value.statement, (cst.Assign, cst.AnnAssign))]
    return bool(starts) and all(facts.tree.inside(start, loop) for start in starts)


def _is_place(facts: Facts, name: str, loop: cst.CSTNode) -> bool:
    """``rows[k : k + len(x)] = ...; k += len(x)`` counts where the next rows go."""
    indices = [index for subscript in facts.tree.within(loop, cst.Subscript) for index in subscript.slice]
    return any(dotted(part) == name for index in indices for part in facts.tree.within(index, cst.Name))


def _is_trained(facts: Facts, name: str, node: cst.CSTNode) -> bool:
    scope = facts.scopes.of(node)
    calls = facts.methods("backward")
    return any(
        isinstance(call.func, cst.Attribute) and dotted(call.func.value) == name and facts.scopes.of(call) is scope
        for call in calls
    )


RULE = Rule("DDP103", "unreduced-sum", "A loss or metric is added up over batches and never reduced", find)
