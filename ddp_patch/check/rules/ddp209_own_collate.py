"""A loader with a ``collate_fn`` of the script's own is read by one rank of each host, for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts
from ..literals import brief
from ..rule import Finding, Rule, World

_CHOOSING = [f"ddp_patch.{name}" for name in ("shard_batch", "read_once", "deal", "whole")]


def find(facts: Facts) -> Iterator[Finding]:
    """Find loaders with a ``collate_fn`` that is not torch's, and that ``ddp_patch.shard_batch`` is not told of."""
    if facts.calls(*_CHOOSING):
        return
    for call in facts.calls("torch.utils.data.DataLoader"):
        collate = facts.argument(call, "collate_fn", 6)
        if collate is None or isinstance(collate, cst.IfExp) or _is_of_torch(facts, collate):
            continue
        yield Finding(
            collate,
            f"collate_fn={brief(facts, collate, 40)} makes the batches of this loader",
            "one rank of each host loads for all of them, as the function may look at the whole batch",
            "Write ddp_patch.shard_batch(loader) where each rank may load its own rows.",
        )


def _is_of_torch(facts: Facts, collate: cst.BaseExpression) -> bool:
    """None, torch's own, or a variable that is never anything else: ``def load(d, collate_fn=default_collate)``."""
    name = facts.name(collate) or ""
    if name == "None" or name.startswith("torch."):
        return True
    variable = facts.scopes.find(name, facts.scopes.of(collate)) if name else None
    values = [facts.name(value.node) or "" for value in variable.values] if variable is not None else []
    return bool(values) and all(value == "None" or value.startswith("torch.") for value in values)


RULE = Rule(
    "DDP209",
    "own-collate",
    "A loader has a collate_fn of its own",
    find,
    (World.PLAIN, World.DDP_PATCH),
    training=False,
)
