"""A dataset that asks which worker it is in is read by one rank of each host, with the workers it counts on."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts
from ..rule import Finding, Rule, World


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``get_worker_info()`` in the class of a map-style dataset."""
    for call in facts.calls("torch.utils.data.get_worker_info"):
        owner = facts.tree.enclosing(call, cst.ClassDef)
        function = facts.tree.enclosing(call, cst.FunctionDef)
        if owner is not None and function is not None and function.name.value != "__iter__":
            yield Finding(
                call,
                f"{owner.name.value} asks for its worker",
                "one rank of each host loads for all of them, with all workers",
                "Draw from torch's generator instead: every worker has a stream of its own.",
            )


RULE = Rule(
    "DDP211", "asks-for-worker", "A dataset asks for its worker", find, (World.PLAIN, World.DDP_PATCH), training=False
)
