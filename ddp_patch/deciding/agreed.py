"""What all ranks decide about a module."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

from ..batch.world import World
from ..calling.call_mode import CallMode
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
    told = own.how.name, own.reason, repr((own.dims, own.losses)), own.is_sized
    decisions = [given[0] for given in world.share([told])]
    for how in (CallMode.WHOLE, CallMode.BATCHES):
        for name, reason, *_ in decisions:
            if name == how.name:
                return own if (own.how, own.reason) == (how, reason) else SplitDecision(how, reason)
    if any(outputs != decisions[0][2] for _, _, outputs, _ in decisions):
        return SplitDecision(CallMode.BATCHES, "its outputs differ in shape between ranks")
    return dataclasses.replace(own, is_sized=any(is_sized for *_, is_sized in decisions))
