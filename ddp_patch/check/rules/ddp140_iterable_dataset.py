"""An iterable dataset yields everything on every rank, unless it deals by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ...source import Facts
from ..rule import Finding, Rule

_DEALS = re.compile(r"rank|world_size|num_replicas|shard|split_by_node", re.I)


def find(facts: Facts) -> Iterator[Finding]:
    """Find subclasses of IterableDataset that mention no rank."""
    for node in facts.tree.all(cst.ClassDef):
        bases = [facts.name(base.value) or "" for base in node.bases]
        if "torch.utils.data.IterableDataset" in bases and not _DEALS.search(facts.code(node)):
            yield Finding(
                node.name,
                f"{node.name.value} yields all of its items",
                "every rank reads every item, and trains on it",
                "Deal by rank and worker in its __iter__, as many to each (its page has the lines), or train in with "
                "model.join(): a rank that has a batch more waits for ever.",
            )


RULE = Rule("DDP140", "iterable-dataset", "An iterable dataset yields everything on every rank", find, training=False)
