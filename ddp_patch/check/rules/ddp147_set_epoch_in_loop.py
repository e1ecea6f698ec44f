"""``set_epoch`` inside of the loop over batches comes too late: the order is drawn when the loop begins."""

from __future__ import annotations

from collections.abc import Iterator

from ...source import Facts
from ..rule import Finding, Rule, World


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``set_epoch`` in the body of a loop over a loader."""
    for call in facts.methods("set_epoch"):
        if facts.batch_loop(call) is not None:
            yield Finding(
                call,
                f"{facts.code(call)} stands in the loop over batches",
                "the order of this epoch is drawn already when the loop begins",
                "Write it before the loop.",
            )


RULE = Rule("DDP147", "set-epoch-in-loop", "set_epoch comes too late", find, (World.DDP,), training=False)
