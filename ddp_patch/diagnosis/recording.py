"""Begin to record the points of every rank, under one name for the run."""

from __future__ import annotations

import time
import uuid

from ..batch.world import World
from ..job import hosts
from ..job.recorder import Recorder


def record(folder: str, world: World) -> None:
    """Have this rank's trail write its points down. Every rank comes here together.

    Args:
        folder: of the files, one for each rank.
        world: of this rank.

    Raises:
        OptionError: on every rank, when one of them cannot write there.
    """
    run, made = world.share([uuid.uuid4().hex])[0][0], []

    def make() -> None:
        header = {"run": run, "began": time.time(), "host": hosts.host(), "world_size": world.size}
        made.append(Recorder(folder, world.rank, **header))

    world.together(make)
    world.trail.recorder = made[0]
