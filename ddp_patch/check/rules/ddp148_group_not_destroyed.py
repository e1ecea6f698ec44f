"""A process group that is left open at the end: torch warns, and NCCL may hang at exit."""

from __future__ import annotations

from collections.abc import Iterator

from ...source import Facts
from ..rule import Finding, Rule, World


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``init_process_group`` in a script that trains and never destroys the group."""
    if facts.says("destroy_process_group") or not facts.trains:
        return
    if any("destroy" in name or "cleanup" in name for name in (*facts.imported, *facts.scopes.functions)):
        return
    for call in facts.calls("torch.distributed.init_process_group"):
        yield Finding(
            call,
            "this process group is never destroyed",
            "torch warns at exit that it leaks resources, and ranks may hang there",
            "Write dist.destroy_process_group() at the end.",
        )


RULE = Rule("DDP148", "group-not-destroyed", "The process group is never destroyed", find, (World.DDP,))
