"""What all ranks decide about a module."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

from ..batch.world import World
from ..calling.call_mode import CallMode
from .trial_verdict import SplitDecision


@contextmanager
def muted(world: World) -> Iterator[None]:
    """Surround a trial: what it does to the world outside is left out, and so is how many functions a rank called."""
    token, operations = world.muted.set(True), world.operations
    try:
        yield
    finally:
        world.muted.reset(token)
        world.operations = operations


def agreed(world: World, local: SplitDecision) -> SplitDecision:
    """Let the ranks agree on the most cautious of their decisions."""
    message = local.mode.name, local.reason, repr((local.dims, local.losses, local.kept)), local.is_size_dependent
    decisions = [answer[0] for answer in world.share([message])]
    for how in (CallMode.WHOLE, CallMode.BATCHES):
        for name, reason, *_ in decisions:
            if name == how.name:
                return local if (local.mode, local.reason) == (how, reason) else SplitDecision(how, reason)
    if any(outputs != decisions[0][2] for _, _, outputs, _ in decisions):
        return SplitDecision(CallMode.BATCHES, "its outputs differ in shape between ranks")
    return dataclasses.replace(local, is_size_dependent=any(depends for *_, depends in decisions))
