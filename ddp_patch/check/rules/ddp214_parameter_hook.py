"""Hooks on parameters see the global gradient, so DDP cannot reduce while backward goes on."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts
from ..literals import brief
from ..rule import Finding, Rule, World


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``p.register_hook(...)`` in a loop over ``model.parameters()``."""
    for call in facts.methods("register_hook", "register_post_accumulate_grad_hook"):
        loop = facts.tree.enclosing(call, cst.For)
        if loop is not None and any(name in facts.code(loop.iter) for name in (".parameters()", ".named_parameters()")):
            yield Finding(
                call,
                f"{brief(facts, call)} hooks a parameter",
                "it sees the global gradient, so the reduction cannot overlap with backward: exact, and slower",
                "Look at p.grad behind loss.backward() instead.",
            )


RULE = Rule(
    "DDP214",
    "parameter-hook",
    "Hooks on parameters keep the reduction from overlapping",
    find,
    (World.PLAIN, World.DDP_PATCH),
)
