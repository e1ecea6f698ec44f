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
        name = facts.name(collate) or ""
        if collate is None or name == "None" or name.startswith("torch.") or isinstance(collate, cst.IfExp):
            continue
        yield Finding(
            collate,
            f"collate_fn={brief(facts, collate, 40)} makes the batches of this loader",
            "one rank of each host loads for all of them, as the function may look at the whole batch",
            "Write ddp_patch.shard_batch(loader) where each rank may load its own rows.",
        )


RULE = Rule(
    "DDP209",
    "own-collate",
    "A loader has a collate_fn of its own",
    find,
    (World.PLAIN, World.DDP_PATCH),
    training=False,
)
