"""One seed for all ranks: they draw the same dropout masks and the same augmentation."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ...source import Facts, Kind
from ..rule import Finding, Rule

_DRAWS = re.compile(r"dropout|^Random[A-Z]|^randn|^rand$|^rand_like|^normal_?$|noise|augment|ColorJitter", re.I)


def find(facts: Facts) -> Iterator[Finding]:
    """Find the first ``torch.manual_seed`` of a file where no seed depends on the rank."""
    calls = facts.calls("torch.manual_seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all")
    if facts.calls("torch.multiprocessing.spawn"):
        return  # what is seeded above it, the spawned processes do not inherit
    if not calls or facts.elsewhere.seeds_by_rank or not _draws(facts) or any(_by_rank(facts, call) for call in calls):
        return
    yield Finding(
        calls[0],
        f"{facts.code(calls[0])} is the same on every rank",
        "all ranks draw the same dropout masks and augment their rows alike",
        "Write torch.manual_seed(seed + dist.get_rank()) behind DistributedDataParallel(model).",
    )


def _by_rank(facts: Facts, call: cst.Call) -> bool:
    parts = [part for argument in call.args for part in facts.tree.within(argument, cst.Name, cst.Attribute, cst.Call)]
    named = [facts.scopes.find(part.value, facts.scopes.of(part)) for part in parts if isinstance(part, cst.Name)]
    made = [facts.code(value.node) for variable in named if variable is not None for value in variable.values]
    return any(Kind.RANK in facts.kinds(part) for part in parts) or any(
        "rank" in text.lower() for text in (*map(facts.code, parts), *made)
    )


def _draws(facts: Facts) -> bool:
    """Something in the file draws for rows: dropout, augmentation, noise."""
    return any(_DRAWS.search(name.value) for name in facts.tree.all(cst.Name))


RULE = Rule("DDP118", "one-seed", "The seed is the same on every rank", find)
