"""One seed for all ranks: they draw the same dropout masks and the same augmentation."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts, Kind
from ..rule import Finding, Rule


def find(facts: Facts) -> Iterator[Finding]:
    """Find the first ``torch.manual_seed`` of a file where no seed depends on the rank."""
    calls = facts.calls("torch.manual_seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all")
    if not calls or any(_by_rank(facts, call) for call in calls):
        return
    yield Finding(
        calls[0],
        f"{facts.code(calls[0])} is the same on every rank",
        "all ranks draw the same dropout masks and augment their rows alike",
        "Write torch.manual_seed(seed + dist.get_rank()) behind DistributedDataParallel(model).",
    )


def _by_rank(facts: Facts, call: cst.Call) -> bool:
    parts = [part for argument in call.args for part in facts.tree.within(argument, cst.Name, cst.Attribute, cst.Call)]
    return any(Kind.RANK in facts.kinds(part) or "rank" in facts.code(part).lower() for part in parts)


RULE = Rule("DDP118", "one-seed", "The seed is the same on every rank", find)
