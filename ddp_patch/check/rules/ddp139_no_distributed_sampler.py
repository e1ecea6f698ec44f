"""Without a DistributedSampler every rank trains on every row."""

from __future__ import annotations

from collections.abc import Iterator

from ...source import Facts
from ..rule import Finding, Rule, World


def find(facts: Facts) -> Iterator[Finding]:
    """Find the loaders of a DDP script's training that have no sampler at all."""
    if not facts.calls("torch.nn.parallel.DistributedDataParallel") or facts.says("DistributedSampler"):
        return
    if any("sampler" in name.lower() for name in (*facts.imported, *facts.scopes.classes)):
        return
    for call in facts.calls("torch.utils.data.DataLoader"):
        if (
            any(facts.argument(call, name) for name in ("sampler", "batch_sampler"))
            or sum(argument.keyword is None for argument in call.args) > 3
            or facts.has_stars(call)
        ):
            continue
        name = facts.assigned(call)
        trained = [loop for loop in facts.batch_loops if loop.trains and loop.loader is not None]
        if (
            name
            and call.args
            and _is_dealt_nowhere(facts)
            and any(name in facts.code(loop.loader) for loop in trained if loop.loader)
        ):
            yield Finding(
                call,
                f"{name} has no DistributedSampler",
                "every rank trains on every row, so N ranks are no faster than one",
                "Write sampler=DistributedSampler(dataset), and sampler.set_epoch(epoch) in each epoch.",
            )


def _is_dealt_nowhere(facts: Facts) -> bool:
    names = " ".join((*facts.scopes.classes, *facts.imported.values())).lower()
    return "iterable" not in names and "shard" not in names


RULE = Rule("DDP139", "no-distributed-sampler", "A DDP script's loader deals no rows", find, (World.DDP,))
