"""A forward that draws from Python's or NumPy's generator runs on whole batches, so that all ranks draw alike."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts
from ..literals import brief
from ..rule import Finding, Rule, World
from .ddp205_forward_reads_values import in_forward


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``random.random()`` and ``np.random.rand()`` in the ``forward`` of a module."""
    for call in facts.tree.all(cst.Call):
        name = facts.name(call.func) or ""
        if name.startswith(("random.", "numpy.random.")) and _is_drawn(facts, name) and in_forward(facts, call):
            yield Finding(
                call,
                f"{brief(facts, call)} draws in a forward",
                "this module runs on whole batches, on every rank: exact, and no faster than one process",
                "Write torch.rand(()) < p, which is drawn for rows.",
            )


def _is_drawn(facts: Facts, name: str) -> bool:
    return name.partition(".")[0] in facts.modules


RULE = Rule(
    "DDP206",
    "forward-draws",
    "A forward draws from Python's or NumPy's generator",
    find,
    (World.PLAIN, World.DDP_PATCH),
    training=False,
)
