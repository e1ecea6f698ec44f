"""What all ranks decide about a module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..batch.world import World
from ..calling.how import How
from .probe import SplitDecision


@contextmanager
def muted(world: World) -> Iterator[None]:
    """Surround a trial: what it does to the world outside is left out."""
    token = world.muted.set(True)
    try:
        yield
    finally:
        world.muted.reset(token)


def agreed(world: World, own: SplitDecision) -> SplitDecision:
    """Let the ranks agree on the most cautious of their decisions."""
    decisions: list[SplitDecision] = [given[0] for given in world.share([own])]
    for how in (How.WHOLE, How.BATCHES):
        for decision in decisions:
            if decision.how is how:
                return decision
    if any((decision.dims, decision.losses) != (decisions[0].dims, decisions[0].losses) for decision in decisions):
        return SplitDecision(How.BATCHES, "its outputs differ in shape between ranks")
    return own
