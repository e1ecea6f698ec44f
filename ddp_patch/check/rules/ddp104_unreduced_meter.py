"""A meter or list that is filled in a loop over batches holds this rank's values only."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts, Kind, dotted
from ..literals import brief
from ..rule import Finding, Rule
from ..sharding import ranks_differ


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``meter.update(loss.item())`` and ``losses.append(loss.item())``, once for each meter."""
    seen: set[object] = set()
    for call in facts.methods("update", "append"):
        holder = dotted(call.func.value) if isinstance(call.func, cst.Attribute) else None
        loop = facts.batch_loop(call)
        if holder is None or loop is None or not call.args or facts.modules & {"torchmetrics", "torcheval"}:
            continue
        kinds = facts.kinds(call.args[0].value)
        variable = facts.scopes.find(holder, facts.scopes.of(call))
        if variable is None or variable in seen or not kinds & {Kind.LOCAL, Kind.LOSS_VALUE} or Kind.REDUCED in kinds:
            continue
        if isinstance(call.args[0].value, (cst.Call, cst.Dict)) and not _is_call_of_number(facts, call.args[0].value):
            continue
        if (
            not ranks_differ(facts, call)
            or not _is_number(facts, call.args[0].value)
            or Kind.REDUCED in variable.kinds
            or _is_state(variable.kinds)
        ):
            continue
        if any(facts.tree.inside(value.node, loop.node) for value in variable.values):
            continue  # made anew for each batch
        seen.add(variable)
        yield Finding(
            call,
            f"{holder}.{call.func.attr.value}({brief(facts, call.args[0].value, 30)}) takes a batch's value",  # type: ignore[attr-defined]
            f"it is of this rank's rows, so {holder} ends up with another value on every rank",
            "Write value = value.clone(); dist.all_reduce(value, op=dist.ReduceOp.AVG) first, or reduce at the end.",
        )


def _is_call_of_number(facts: Facts, node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Call) and (
        isinstance(node.func, cst.Attribute) or facts.name(node.func) in ("float", "int")
    )


def _is_number(facts: Facts, node: cst.BaseExpression) -> bool:
    """``loss.item()``, ``float(loss)``, ``loss.data[0]``, ``loss`` itself: one number, not rows."""
    text = facts.code(node)
    if any(word in text for word in (".item()", ".data[0]", "float(")) or Kind.LOSS_VALUE in facts.kinds(node):
        return True
    return any(word in text.lower() for word in ("loss", "acc", "prec", "err"))


def _is_state(kinds: set[Kind]) -> bool:
    return bool(kinds & {Kind.OPTIMIZER, Kind.MODULE, Kind.STATE_DICT, Kind.TRACKER})


RULE = Rule("DDP104", "unreduced-meter", "A meter or list takes values of this rank's rows", find)
