"""torch.optim.Optimizer: what it trains tells where the model is.

Steps are counted by the global hook: wrapping ``Optimizer.step`` would run for none of torch's own optimizers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from ..batch.world import World
from ..patcher import Patch
from ..replica.discovery import Discovery
from ..replica.replicas import Replicas


def patches(replicas: Replicas, discovery: Discovery) -> list[Patch]:
    """Rows for ``Optimizer``."""

    def add_param_group(wrapped: Any, instance: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        wrapped(*args, **kwargs)
        replicas.optimizes(instance)
        discovery.start()

    return [
        Patch(
            "torch.optim.optimizer", "Optimizer.add_param_group", add_param_group, "tells which parameters are trained"
        )
    ]


def hooks(world: World) -> list[Callable[[], None]]:
    """Register the step hooks; returns the functions that remove them."""

    def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        world.ledger.steps += 1

    return [register_optimizer_step_post_hook(after).remove]
