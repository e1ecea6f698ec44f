"""A DistributedSampler that is never told the epoch shuffles alike in each.

Its order is drawn from ``seed + epoch``, and ``epoch`` stays 0 until ``set_epoch`` is called.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...source import Facts
from ..literals import is_false
from ..rule import Finding, Rule, World


def find(facts: Facts) -> Iterator[Finding]:
    """Find shuffling samplers in a program that trains and never calls ``set_epoch``."""
    if facts.says("set_epoch"):
        return
    for call in facts.calls("torch.utils.data.DistributedSampler"):
        if is_false(facts.argument(call, "shuffle", 3)) or _evaluates(facts.assigned(call)):
            continue
        name = facts.assigned(call) or "sampler"
        yield Finding(
            call,
            f"{name} is never told the epoch",
            "DistributedSampler shuffles alike in every epoch until it is",
            f"Write {name}.set_epoch(epoch) before each pass over the loader.",
        )


def _evaluates(name: str | None) -> bool:
    return name is not None and any(word in name.lower() for word in ("val", "test", "eval", "dev"))


RULE = Rule("DDP101", "no-set-epoch", "A DistributedSampler is never told the epoch", find, (World.DDP,), of_parts=True)
