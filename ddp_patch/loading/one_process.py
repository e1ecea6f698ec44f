"""Where one rank reads for a host, a dataset that deals itself to ranks sees one process, whose rows it has to give."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch.distributed as dist

from ..batch.world import World

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@contextmanager
def as_one_process(world: World) -> Iterator[None]:
    """Hide the other ranks from a dataset and a collate function."""
    hidden = {name: os.environ.pop(name) for name in _VARIABLES if name in os.environ}
    reading = world.reading.set(True)
    try:
        yield
    finally:
        world.reading.reset(reading)
        os.environ.update(hidden)


class OneProcessWorker:
    """A worker_init_fn that hides the other ranks from a worker, then calls the script's own."""

    def __init__(self, then: Callable[[int], None] | None) -> None:
        """Keep what spawned workers can unpickle."""
        self.then = then

    def __call__(self, worker_id: int) -> None:
        """Forget the process group that was inherited, which no worker can use."""
        for name in _VARIABLES:
            os.environ.pop(name, None)
        dist.GroupMember.WORLD = None  # what torch.distributed.is_initialized() looks at (torch 2.13)
        if self.then is not None:
            self.then(worker_id)
