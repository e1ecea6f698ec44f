"""A DistributedSampler repeats rows until all ranks have as many: an evaluation counts these twice."""

from __future__ import annotations

from collections.abc import Iterator

from ...source import Facts
from ..literals import is_false, is_true
from ..rule import Finding, Rule, World

_WORDS = ("val", "test", "eval", "dev")


def find(facts: Facts) -> Iterator[Finding]:
    """Find samplers of an evaluation: those that do not shuffle, or whose name says so."""
    for call in facts.calls("torch.utils.data.DistributedSampler"):
        name = facts.assigned(call) or ""
        evaluates = any(word in name.lower() for word in _WORDS) or is_false(facts.argument(call, "shuffle", 3))
        if evaluates and "train" not in name.lower() and not is_true(facts.argument(call, "drop_last", 5)):
            yield Finding(
                call,
                f"{name or 'a sampler'} deals the rows of an evaluation",
                "where they do not divide by the world size it repeats some, which the metric then counts twice",
                "Write a sampler of your own, range(rank, len(dataset), world_size), and evaluate with "
                "model.module(x), as DDP's forward meets the other ranks, which may have a batch less.",
            )


RULE = Rule(
    "DDP115",
    "padded-evaluation",
    "A DistributedSampler repeats rows of an evaluation",
    find,
    (World.DDP,),
    training=False,
)
