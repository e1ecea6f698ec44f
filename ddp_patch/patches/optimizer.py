"""torch.optim.Optimizer: what it trains tells where the model is.

Steps are counted by the global hook: wrapping ``Optimizer.step`` would run for none of torch's own optimizers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

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

    def zero_grad(wrapped: Any, instance: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        replicas.backwards.before_zeroing(p for group in instance.param_groups for p in group["params"])
        wrapped(*args, **kwargs)

    def zero_module(wrapped: Any, instance: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        replicas.backwards.before_zeroing(instance.parameters())
        wrapped(*args, **kwargs)

    unread = "gradients nobody looked at are not averaged any more"
    return [
        Patch(
            "torch.optim.optimizer", "Optimizer.add_param_group", add_param_group, "tells which parameters are trained"
        ),
        Patch("torch.optim.optimizer", "Optimizer.zero_grad", zero_grad, unread),
        Patch("torch.nn.modules.module", "Module.zero_grad", zero_module, unread),
    ]


def hooks(replicas: Replicas, world: World) -> list[Callable[[], None]]:
    """Register the step hooks; returns the functions that remove them."""

    def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        has_closure = any(value is not None for value in (*args[1:], *kwargs.values()))
        replicas.backwards.before_step(optimizer, has_closure)

    def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        replicas.backwards.after_step(optimizer)
        world.ledger.steps += 1

    return [register_optimizer_step_pre_hook(before).remove, register_optimizer_step_post_hook(after).remove]
