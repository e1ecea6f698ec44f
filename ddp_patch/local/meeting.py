"""A point of the local view at which ranks meet: a forward under DDP, or a backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..batch.world import World
from ..errors import DdpPatchError
from ..job.rank_status import RankStatus
from .synced import explain


def meet(world: World, rank_status: RankStatus, what: str, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Do what ranks meet in, as ``World.collective`` surrounds it, and compare what failed."""
    if rank_status.out_of_step is not None:
        world.check()
    counts = world.trail.enter(what)
    try:
        return run(*args, **kwargs)
    except DdpPatchError:
        raise
    except Exception as error:
        explain(error)
        why = world.explain(error) if isinstance(error, RuntimeError) else None
        if why is not None and why is not error:
            raise why from error
        # A script that catches it goes on to other batches than ranks that did not meet it.
        world.check_all_failed(error, f"{what}, the ranks' point {world.trail.count},")
        raise
    finally:
        if counts:
            world.trail.leave()
