"""How fast the ranks of a job reach each other: all-reduces of a few bytes and of many, by the clock."""

from __future__ import annotations

import statistics
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

FEW, MANY = 8, 16 << 20  # bytes
_TIMES = {FEW: 30, MANY: 5}


def links(session: Any) -> dict[str, float]:
    """Give the seconds of an all-reduce of few and of many bytes; every rank comes here together.

    Args:
        session: of ddp_patch.
    """
    world = session.world
    with world.collective("measuring", computes=True):
        return {name: _seconds(world, size) for name, size in (("few", FEW), ("many", MANY))}


def _seconds(world: Any, size: int) -> float:
    """Median of several; the first of them warms up."""
    tensor = torch.zeros(size // 4, device=world.device)
    taken = []
    for _ in range(_TIMES[size] + 1):
        began = perf_counter()
        dist.all_reduce(tensor, group=world.group)
        if tensor.is_cuda:
            torch.cuda.synchronize(tensor.device)
        taken.append(perf_counter() - began)
    return statistics.median(taken[1:])


def link(ranks: int, few: float, many: float) -> dict[str, float]:
    """Solve the formula of a ring on one host for its latency and bandwidth (``plan.network.ring``).

    Args:
        ranks: how many took part.
        few: seconds of an all-reduce of ``FEW`` bytes.
        many: seconds of one of ``MANY``.
    """
    messages = 2 * (ranks - 1)
    bandwidth = messages / ranks * MANY / max(many - few, 1e-9)
    return {"bandwidth_bytes_per_second": bandwidth, "latency_seconds": few / messages}
