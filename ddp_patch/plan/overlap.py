"""Buckets of gradients that travel while the backward goes on.

Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020 (arXiv 2006.15704): DDP
sends a bucket as soon as its last gradient is there, one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

MIB = 1 << 20
CAP = 25 * MIB  # DDP's bucket_cap_mb, if nobody says
FIRST = MIB  # DDP's first bucket, so that sending begins early (torch.distributed._DEFAULT_FIRST_BUCKET_BYTES)


def buckets(size: float, cap: float = CAP) -> list[float]:
    """Cut gradients into DDP's buckets, in the order of the backward: 1 MiB, then ``cap`` each, and the rest.

    DDP never cuts a parameter, so that its own are somewhat larger.

    Args:
        size: bytes of all gradients.
        cap: bytes of a bucket; DDP's ``bucket_cap_mb``.
    """
    first = min(FIRST, cap, size)
    full, rest = divmod(size - first, cap)
    return [first, *[cap] * int(full), *([rest] if rest else [])]


def finished(sizes: Sequence[float], backward: float, seconds: Callable[[float], float]) -> float:
    """Give when the last bucket is back, in seconds from the beginning of the backward.

    Gradients are taken to come at an even pace of bytes. Bucket i begins when it is full and bucket i-1 is back; what
    comes out is ``max over j of (when j is full + all-reduces of j and those after it)``.

    Args:
        sizes: bytes of each bucket, in the order of the backward.
        backward: seconds.
        seconds: that an all-reduce of so many bytes takes.
    """
    whole, ready, end = math.fsum(sizes), 0.0, 0.0
    for size in sizes:
        ready += size
        end = max(end, backward * min(ready / whole, 1.0)) + seconds(size)
    return max(end, backward)


def exposed(sizes: Sequence[float], backward: float, seconds: Callable[[float], float]) -> float:
    """Give the seconds that ranks wait for gradients after their backward. Arguments as of ``finished``."""
    return finished(sizes, backward, seconds) - backward
