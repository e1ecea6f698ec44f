"""A sampler other than DistributedSampler draws from the whole dataset, on every rank for itself."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts, Kind
from ..literals import brief
from ..rule import Finding, Rule

_RANDOM = {f"torch.utils.data.{name}Sampler" for name in ("Random", "WeightedRandom", "SubsetRandom")}


def find(facts: Facts) -> Iterator[Finding]:
    """Find loaders with a sampler that does not deal rows to ranks."""
    for call in facts.calls("torch.utils.data.DataLoader"):
        sampler = facts.argument(call, "sampler", 3) or facts.argument(call, "batch_sampler", 4)
        if sampler is None or isinstance(sampler, cst.IfExp):
            continue
        kinds = facts.kinds(sampler)
        if Kind.SAMPLER not in kinds or Kind.DISTRIBUTED_SAMPLER in kinds or not _draws(facts, sampler):
            continue
        if facts.is_run(call) and not facts.says("DistributedSampler") and not _knows_ranks(facts, sampler):
            yield Finding(
                sampler,
                f"{brief(facts, sampler)} knows nothing of ranks",
                "every rank draws from the whole dataset: they work on the same rows, or on ones that overlap",
                "Write a sampler that draws with one seed on all ranks and gives each every N-th index.",
            )


def _draws(facts: Facts, sampler: cst.BaseExpression) -> bool:
    name = facts.name(sampler)
    variable = facts.scopes.find(name, facts.scopes.of(sampler)) if name else None
    values = [value.node for value in variable.values] if variable else [sampler]
    made = {facts.name(value.func) or "" for value in values if isinstance(value, cst.Call)}
    return any(each in _RANDOM or each in facts.scopes.classes for each in made)


def _knows_ranks(facts: Facts, sampler: cst.BaseExpression) -> bool:
    text = facts.code(sampler).lower()
    name = facts.name(sampler)
    variable = facts.scopes.find(name, facts.scopes.of(sampler)) if name else None
    values = [value.node for value in variable.values] if variable else [sampler]
    inner = [argument.value for value in values if isinstance(value, cst.Call) for argument in value.args]
    if any(Kind.DISTRIBUTED_SAMPLER in facts.kinds(each) for each in inner):
        return True  # a BatchSampler of one
    made = " ".join(facts.code(value).lower() for value in values)
    return any(word in f"{text} {made}" for word in ("rank", "distributed", "world", "replicas"))


RULE = Rule("DDP138", "sampler-of-rank", "A sampler knows nothing of ranks", find, of_plain_parts=True)
