"""Every process asks, and only one has a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from ...source import Facts
from ..inference_only import infers
from ..literals import brief
from ..rule import Finding, Rule


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``input()`` and debuggers under no test on the rank."""
    if "input" in facts.imported or "input" in facts.scopes.functions:
        return
    for call in facts.calls("input", "breakpoint", "pdb.set_trace", "ipdb.set_trace", "IPython.embed"):
        if not facts.on_some_ranks(call) and not infers(facts, call):
            yield Finding(
                call,
                f"{brief(facts, call)} asks on every rank",
                "all processes read from one terminal, or find it closed: EOFError",
                "Take it out, or ask on rank 0 and dist.broadcast_object_list the answer.",
            )


RULE = Rule("DDP151", "input-on-every-rank", "Every rank asks for input", find)
