"""DDP keeps the parameters that it was made with: a module that is moved or cast afterwards is no longer averaged."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts, Kind, dotted
from ..rule import Finding, Rule, World

_MOVES = ("cuda", "cpu", "half", "double", "bfloat16", "to", "float")


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``.cuda()``, ``.half()`` and the like of a DDP module, below the line that makes it."""
    wraps = facts.calls("torch.nn.parallel.DistributedDataParallel")
    for call in facts.methods(*_MOVES):
        if not isinstance(call.func, cst.Attribute):
            continue
        moved = call.func.value
        direct = moved in wraps
        scope = facts.tree.enclosing(call, cst.FunctionDef)
        before = [
            wrap
            for wrap in wraps
            if facts.tree.enclosing(wrap, cst.FunctionDef) is scope
            and facts.tree.inside(call, facts.tree.enclosing(wrap, cst.IndentedBlock, cst.Module) or call)
            and facts.tree.order[wrap] < facts.tree.order[call]
            and facts.assigned(wrap) == dotted(moved)
            and dotted(moved) is not None
        ]
        if direct or (before and Kind.DDP in facts.kinds(moved) and facts.trains):
            yield Finding(
                call,
                f".{call.func.attr.value}(...) comes after DistributedDataParallel(...)",
                "DDP goes on averaging the parameters that it was made with",
                "Write it before the module is wrapped.",
            )


RULE = Rule(
    "DDP144", "moved-after-wrap", "A DDP module is moved or cast after it was made", find, (World.DDP,), training=False
)
