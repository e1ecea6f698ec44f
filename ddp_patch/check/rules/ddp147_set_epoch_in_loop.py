"""``set_epoch`` inside of the loop over batches comes too late: the order is drawn when the loop begins."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import BatchLoop, Facts
from ..rule import Finding, Rule, World


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``set_epoch`` in the body of a loop over a loader, where no pass begins behind it."""
    for call in facts.methods("set_epoch"):
        loop = facts.batch_loop(call)
        if loop is not None and not _begins_anew(facts, call, loop):
            yield Finding(
                call,
                f"{facts.code(call)} stands in the loop over batches",
                "the order of this epoch is drawn already when the loop begins",
                "Write it before the loop.",
            )


def _begins_anew(facts: Facts, call: cst.Call, loop: BatchLoop) -> bool:
    """``it = iter(loader)``, or a loop over a loader inside of one that pulls batches by ``next``, comes behind it."""
    passes: list[cst.CSTNode] = [*facts.calls("iter")]
    if not loop.targets:
        passes += [other.node for other in facts.batch_loops if other.targets]
    order = facts.tree.order
    return any(facts.tree.inside(node, loop.node) and order[node] > order[call] for node in passes)


RULE = Rule("DDP147", "set-epoch-in-loop", "set_epoch comes too late", find, (World.DDP,), training=False)
