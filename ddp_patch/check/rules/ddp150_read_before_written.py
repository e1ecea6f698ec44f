"""What rank 0 saves, the others read without waiting for it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts
from ..literals import brief
from ..rule import Finding, Rule, World


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``torch.load`` of the path of a guarded ``torch.save`` above it, in a file without a barrier."""
    if facts.says("barrier", "monitored_barrier", "wait_for_everyone"):
        return
    saves = [call for call in facts.calls("torch.save") if facts.on_some_ranks(call) and len(call.args) > 1]
    for load in facts.calls("torch.load"):
        function = facts.tree.enclosing(load, cst.FunctionDef)
        same = [
            save
            for save in saves
            if facts.tree.enclosing(save, cst.FunctionDef) is function
            and facts.tree.order[save] < facts.tree.order[load]
            and load.args
            and facts.code(save.args[1].value) == facts.code(load.args[0].value)
        ]
        if same and not facts.on_some_ranks(load):
            yield Finding(
                load,
                f"{brief(facts, load)} reads what rank 0 saves above",
                "the other ranks come here before it is written",
                "Write dist.barrier() between them.",
            )


RULE = Rule(
    "DDP150",
    "read-before-written",
    "A file is read that rank 0 may still be writing",
    find,
    (World.DDP,),
    training=False,
)
