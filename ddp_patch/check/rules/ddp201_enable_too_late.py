"""``ddp_patch.enable()`` goes on top: what ran above it ran before the ranks were there."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts, Kind
from ..rule import Finding, Rule, World

_TOO_LATE = {Kind.LOADER, Kind.OPTIMIZER, Kind.DATA_PARALLEL}


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``enable()`` below a line of the module that makes a loader, an optimizer or a DataParallel."""
    for call in facts.calls("ddp_patch.enable"):
        if facts.tree.enclosing(call, cst.FunctionDef, cst.With, cst.Decorator):
            continue
        early = [
            made
            for made in facts.making(*_TOO_LATE)
            if facts.tree.order[made] < facts.tree.order[call] and facts.tree.enclosing(made, cst.FunctionDef) is None
        ]
        if early:
            yield Finding(
                call,
                f"enable() stands below {facts.code(early[0].func)}(...)",
                "lines above it run before the ranks start and again on each; if that cannot be exact, it raises",
                "Write import ddp_patch; ddp_patch.enable() on top of the script.",
            )


RULE = Rule("DDP201", "enable-too-late", "ddp_patch.enable() is not on top", find, (World.DDP_PATCH,), training=False)
