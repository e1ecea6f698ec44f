"""Spawned processes import the script again: without a guard, each of them spawns again."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts
from ..rule import Finding, Rule

_SPAWNS = ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes")


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``mp.spawn`` at the level of the module."""
    for call in facts.calls(*_SPAWNS):
        if not any(isinstance(outer, (cst.FunctionDef, cst.ClassDef, cst.If)) for outer in facts.tree.ancestors(call)):
            yield Finding(
                call,
                f"{facts.code(call.func)}(...) stands outside of any function",
                "each spawned process imports this file and comes to the same line",
                'Write if __name__ == "__main__": around it.',
            )


RULE = Rule(
    "DDP135",
    "spawn-without-guard",
    "Processes are spawned where the file is imported",
    find,
    training=False,
    breaks_alone=True,
)
