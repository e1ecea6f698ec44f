"""Processes that the script starts by multiprocessing run on every rank."""

from __future__ import annotations

from collections.abc import Iterator

from ...source import Facts
from ..literals import brief
from ..rule import Finding, Rule, World

_STARTS = (
    "multiprocessing.Process",
    "multiprocessing.Pool",
    "torch.multiprocessing.Process",
    "torch.multiprocessing.Pool",
    "concurrent.futures.ProcessPoolExecutor",
    "os.fork",
)


def find(facts: Facts) -> Iterator[Finding]:
    """Find processes that a training script starts."""
    for call in facts.calls(*_STARTS):
        yield Finding(
            call,
            f"{brief(facts, call)} starts processes",
            "every rank starts as many, and they do on each what they do",
            "Divide their number by the ranks of a host, or have a DataLoader's workers do the work.",
        )


RULE = Rule("DDP219", "own-processes", "The script starts processes of its own", find, (World.PLAIN, World.DDP_PATCH))
