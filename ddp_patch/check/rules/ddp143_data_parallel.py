"""nn.DataParallel is one process for all devices: a process for each is faster, and what torch advises."""

from __future__ import annotations

from collections.abc import Iterator

from ...source import Facts
from ..literals import brief
from ..rule import Finding, Rule, World


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``nn.DataParallel(...)`` and ``data_parallel(...)`` in files without DDP."""
    for call in facts.calls("torch.nn.DataParallel", "torch.nn.parallel.data_parallel"):
        if call.args:
            yield Finding(
                call,
                f"{brief(facts, call)} is one process for all devices",
                "each process has one device and this wrapper has nothing to do",
                "Write import ddp_patch; ddp_patch.enable() on top, or DistributedDataParallel(model).",
            )


RULE = Rule(
    "DDP143",
    "data-parallel",
    "nn.DataParallel where a process for each device is faster",
    find,
    (World.PLAIN,),
    training=False,
)
