"""DDP averages gradients over ranks: of a summed loss, 1/N of the sum's gradient remains."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts, Kind, dotted
from ..literals import is_false, string
from ..rule import Finding, Rule


def find(facts: Facts) -> Iterator[Finding]:
    """Find criteria with ``reduction="sum"`` whose value is trained and not divided by anything."""
    for call in facts.tree.all(cst.Call):
        if string(facts.argument(call, "reduction")) != "sum" and not is_false(facts.argument(call, "size_average")):
            continue
        name = facts.name(call.func) or ""
        if not facts.made(name) & {Kind.LOSS, Kind.LOSS_VALUE} or is_false(facts.argument(call, "reduce")):
            continue
        if _is_trained(facts, call) and not _is_divided(facts, call):
            yield Finding(
                call,
                f"{facts.code(call.func)}(...) sums over the rows",
                "each rank sums its own rows and DDP averages over ranks, so gradients are 1/N of the script's",
                "Write loss = loss * dist.get_world_size() before loss.backward(), or take the mean.",
            )


def _is_trained(facts: Facts, call: cst.Call) -> bool:
    """The value's variable is the one that a backward starts from, in the same function."""
    names = _values(facts, call)
    roots = {
        part.value
        for backward in facts.methods("backward")
        for part in facts.tree.within(backward.func, cst.Name)
        if facts.scopes.of(backward) in {scope for _, scope in names}
    }
    return any(name in roots for name, _ in names)


def _values(facts: Facts, call: cst.Call) -> list[tuple[str | None, object]]:
    scope = facts.scopes.of(call)
    if Kind.LOSS not in facts.made(facts.name(call.func) or ""):
        return [(facts.assigned(call), scope)]
    criterion = facts.assigned(call)
    used = [each for each in facts.tree.all(cst.Call) if criterion and dotted(each.func) == criterion]
    return [(facts.assigned(each), facts.scopes.of(each)) for each in used]


def _is_divided(facts: Facts, call: cst.Call) -> bool:
    names = {name for name, _ in _values(facts, call)}
    divisions = [node for node in facts.tree.all(cst.BinaryOperation) if isinstance(node.operator, cst.Divide)]
    if any(
        facts.tree.inside(call, node.left) or names & {part.value for part in facts.tree.within(node.left, cst.Name)}
        for node in divisions
    ):
        return True
    return any(
        dotted(node.target) in names
        for node in facts.tree.all(cst.AugAssign)
        if isinstance(node.operator, cst.DivideAssign)
    )


RULE = Rule("DDP117", "sum-loss", "A loss that is trained sums over the rows", find)
