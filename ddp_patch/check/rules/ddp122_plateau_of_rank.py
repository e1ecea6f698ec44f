"""ReduceLROnPlateau on a rank's own loss gives every rank a learning rate of its own."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts, Kind
from ..literals import brief
from ..rule import Finding, Rule
from ..sharding import is_of_rows, ranks_differ


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``scheduler.step(loss)`` of a value that was not reduced."""
    for call in facts.methods("step"):
        if (
            not call.args
            or not isinstance(call.func, cst.Attribute)
            or Kind.SCHEDULER not in facts.kinds(call.func.value)
        ):
            continue
        if is_of_rows(facts, call.args[0].value) and ranks_differ(facts, call):
            yield Finding(
                call,
                f"{brief(facts, call)} takes a value of this rank's rows",
                "the ranks lower their learning rates at different times, and their weights part",
                f"Write dist.all_reduce of {brief(facts, call.args[0].value, 30)} first.",
            )


RULE = Rule("DDP122", "plateau-of-rank", "A plateau scheduler follows the loss of one rank", find)
