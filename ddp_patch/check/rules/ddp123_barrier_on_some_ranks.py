"""A barrier that only some ranks come to is waited in for ever."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts
from ..rule import Finding, Rule, World

_BARRIERS = ("torch.distributed.barrier", "torch.distributed.monitored_barrier")


def find(facts: Facts) -> Iterator[Finding]:
    """Find barriers under a test on the rank that have no other half under its opposite."""
    guarded = [(call, facts.guards.of(call)) for call in facts.calls(*_BARRIERS)]
    for call, tests in guarded:
        function = facts.tree.enclosing(call, cst.FunctionDef)
        halves = [
            other for other, others in guarded if others and facts.tree.enclosing(other, cst.FunctionDef) is function
        ]
        if tests and len(halves) == 1:
            yield Finding(
                call,
                f"{facts.code(call)} is under {facts.named_test(tests[0])}",
                "the ranks that come to it wait for those that do not",
                "Write it outside of the test, where every rank comes by.",
            )


RULE = Rule(
    "DDP123", "barrier-on-some-ranks", "A barrier is under a test on the rank", find, (World.DDP,), training=False
)
