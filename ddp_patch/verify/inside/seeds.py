"""Where a script seeds nothing, every run starts from the same random state, so that runs can be compared at all."""

from __future__ import annotations

import functools
import importlib.util
import os
import random
import zlib
from collections import Counter
from collections.abc import Callable

import torch

from ...ledger import script_line
from .settings import SEED


def install() -> None:
    """Seed torch, random and numpy, and have the system's entropy follow from the line that asks."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    if importlib.util.find_spec("numpy") is not None:
        import numpy  # noqa: PLC0415 — optional

        numpy.random.seed(SEED % (1 << 32))
    urandom = _by_line(os.urandom)
    os.urandom = urandom
    if hasattr(random, "_urandom"):
        random._urandom = urandom  # behind random.SystemRandom, secrets and so numpy.random.default_rng()


def _by_line(wrapped: Callable[[int], bytes]) -> Callable[[int], bytes]:
    asked: Counter[str] = Counter()

    @functools.wraps(wrapped)
    def urandom(size: int, /) -> bytes:
        line = script_line()
        if not line.rpartition(":")[0].endswith(".py"):
            return wrapped(size)
        asked[line] += 1
        return random.Random(zlib.crc32(f"{line} {asked[line]}".encode())).randbytes(size)

    return urandom
