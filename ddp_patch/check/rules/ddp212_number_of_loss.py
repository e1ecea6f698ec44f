"""A loss without a gradient is on its way until somebody looks: as ``alpha=`` it is taken for a number, and is NaN."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts, Kind
from ..rule import Finding, Rule, World

_NUMBERS = ("alpha", "value", "beta")


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``torch.add(x, y, alpha=loss)`` of a loss that is a tensor."""
    for call in facts.tree.all(cst.Call):
        name = facts.name(call.func) or ""
        if not name.startswith("torch.") and not name.rpartition(".")[2].endswith("_"):
            continue
        for keyword in _NUMBERS:
            argument = facts.argument(call, keyword)
            if isinstance(argument, (cst.Name, cst.Attribute)) and Kind.LOSS_VALUE in facts.kinds(argument):
                yield Finding(
                    argument,
                    f"{keyword}={facts.code(argument)} is a loss where a number is asked for",
                    "its sum over the ranks is still on the way there, so the number is NaN",
                    f"Write {keyword}={facts.code(argument)}.item().",
                )


RULE = Rule(
    "DDP212", "number-of-loss", "A loss is given where a number is asked for", find, (World.PLAIN, World.DDP_PATCH)
)
