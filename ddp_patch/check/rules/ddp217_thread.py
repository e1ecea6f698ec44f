"""Threads are not run in step: a queue that one fills is read by each rank at another moment."""

from __future__ import annotations

from collections.abc import Iterator

from ...source import Facts
from ..literals import brief
from ..rule import Finding, Rule, World

_THREADS = ("threading.Thread", "concurrent.futures.ThreadPoolExecutor", "multiprocessing.pool.ThreadPool")


def find(facts: Facts) -> Iterator[Finding]:
    """Find threads that a training script starts."""
    for call in facts.calls(*_THREADS):
        yield Finding(
            call,
            f"{brief(facts, call)} starts a thread beside the training",
            "threads are not run in step on the ranks, so what it draws or fills comes at another moment on each",
            "Write DataLoader(..., num_workers=1) for loading; join other threads before their results are used.",
        )


RULE = Rule("DDP217", "thread", "A thread runs beside the training", find, (World.PLAIN, World.DDP_PATCH))
