"""A clock decides when to stop: every rank looks at it at another moment."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts, dotted
from ..literals import brief
from ..rule import Finding, Rule, World

_CLOCKS = {"time.time", "time.perf_counter", "time.monotonic", "time.process_time", "datetime.datetime.now"}


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``if time.time() - start > limit: break`` and ``while time.time() < end`` where a model is trained."""
    clocked = {
        variable.name
        for variable in facts.scopes.all()
        for value in variable.values
        if any(facts.name(call.func) in _CLOCKS for call in facts.tree.within(value.node, cst.Call))
    }
    for node in facts.tree.all(cst.If, cst.While):
        if not isinstance(node, (cst.If, cst.While)) or not _asks(facts, node.test, clocked):
            continue
        trains = isinstance(node, cst.While) and facts.trains_in(node.body)
        loop = facts.tree.enclosing(node, cst.For, cst.While)
        leaves = facts.tree.within(node.body, cst.Break, cst.Return)
        if trains or (leaves and loop is not None and facts.trains_in(loop)):
            yield Finding(
                node.test,
                f"{brief(facts, node.test)} asks a clock",
                "the ranks look at it at different moments and part: ddp_patch ends the job with a LockstepError, and "
                "DDP by hand waits for ever",
                "Count steps, not seconds.",
            )


def _asks(facts: Facts, test: cst.BaseExpression, clocked: set[str]) -> bool:
    if not facts.tree.within(test, cst.Comparison):
        return False
    if any(facts.name(call.func) in _CLOCKS for call in facts.tree.within(test, cst.Call)):
        return True
    names = {dotted(part) for part in facts.tree.within(test, cst.Name)}
    return bool(names & clocked)


RULE = Rule("DDP204", "clock", "A clock decides when training stops", find, (World.PLAIN, World.DDP, World.DDP_PATCH))
