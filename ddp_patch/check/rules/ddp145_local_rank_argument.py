"""torchrun gives the local rank in the environment; it adds no ``--local_rank`` to the command line."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts
from ..literals import string
from ..rule import Finding, Rule, World

_FLAGS = ("--local_rank", "--local-rank")


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``add_argument("--local_rank")`` in files that never look at LOCAL_RANK."""
    texts = {node.value.strip("'\"") for node in facts.tree.all(cst.SimpleString)}
    if "LOCAL_RANK" in texts or "LOCAL_RANK" in facts.elsewhere.words:
        return
    for call in facts.methods("add_argument"):
        flags = [string(argument.value) for argument in call.args]
        if any(flag in _FLAGS for flag in flags):
            yield Finding(
                call,
                "the local rank is taken from --local_rank",
                "torchrun does not pass it, so every rank takes the default and computes on one device",
                'Write int(os.environ["LOCAL_RANK"]).',
            )


RULE = Rule(
    "DDP145", "local-rank-argument", "The local rank is taken from the command line", find, (World.DDP,), training=False
)
