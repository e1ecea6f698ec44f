"""An iterable dataset, and a loader without batches, are read by one rank of each host, for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts, dotted
from ..rule import Finding, Rule, World


def find(facts: Facts) -> Iterator[Finding]:
    """Find loaders over an IterableDataset of the file, and those with ``batch_size=None``."""
    iterable = {
        node.name.value
        for node in facts.tree.all(cst.ClassDef)
        if any(facts.name(base.value) == "torch.utils.data.IterableDataset" for base in node.bases)
    }
    for call in facts.calls("torch.utils.data.DataLoader"):
        dataset = facts.argument(call, "dataset", 0)
        size = facts.argument(call, "batch_size", 1)
        unbatched = isinstance(size, cst.Name) and size.value == "None"
        if unbatched or (dataset is not None and _made_by(facts, dataset) & iterable):
            yield Finding(
                call,
                "this loader reads " + ("without a batch size" if unbatched else f"{facts.code(dataset)}, an iterable"),  # type: ignore[arg-type]
                "one rank of each host reads for all of them",
                "Give it workers, or write a dataset with __getitem__, of which each rank reads its own rows.",
            )


def _made_by(facts: Facts, node: cst.BaseExpression) -> set[str]:
    name = dotted(node)
    variable = facts.scopes.find(name, facts.scopes.of(node)) if name else None
    values = [value.node for value in variable.values] if variable else [node]
    return {dotted(value.func) or "" for value in values if isinstance(value, cst.Call)}


RULE = Rule(
    "DDP210",
    "iterable-loader",
    "A loader that only one rank of each host reads",
    find,
    (World.PLAIN, World.DDP_PATCH),
    training=False,
)
