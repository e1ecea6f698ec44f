"""A hook on a module inside the model sees whole batches, so the model runs on batches down to that module."""

from __future__ import annotations

from collections.abc import Iterator

from ...source import Facts
from ..literals import brief
from ..rule import Finding, Rule, World

_HOOKS = ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook", "register_backward_hook")


def find(facts: Facts) -> Iterator[Finding]:
    """Find hooks on modules, in files that train."""
    for call in facts.methods(*_HOOKS):
        yield Finding(
            call,
            f"{brief(facts, call)} hooks a module",
            "the model runs on whole batches down to this module: exact, and slower",
            "Remove the hook when it is no longer needed (handle.remove()), or return the value from forward.",
        )


RULE = Rule("DDP213", "hook-inside", "A hook on a module inside the model", find, (World.PLAIN, World.DDP_PATCH))
