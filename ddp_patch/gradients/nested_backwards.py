"""A backward that the backward of a script's function runs, as reversible networks do for their blocks.

DDP counts on one visit of each parameter, and each is visited by way of the outputs of the model's forward already. So
the first such backward keeps its gradients apart, and from then on those of the model are averaged after its backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..batch.world import World
from .averages import average
from .grad_watch import grad_of, set_grad
from .gradient_sync import GradientSync
from .graphs import leaves_of
from .loss_scale import LossScale


class NestedBackwards:
    """What parameters got from backwards inside of one that DDP waits for."""

    def __init__(self, world: World, syncs: list[GradientSync], scale: LossScale) -> None:
        """Know of none.

        Args:
            world: the ranks.
            syncs: of the models, kept up to date by who made them.
            scale: of the losses, which the outer backward takes out of what it has itself.
        """
        self._world = world
        self._syncs = syncs
        self._scale = scale
        self._kept: dict[GradientSync, dict[int, Tensor]] = {}  # until the backward around them ends

    def run(self, run: Callable[..., None], roots: Any, kwargs: dict[str, Any]) -> None:
        """Run one.

        Args:
            run: torch's own.
            roots: that it starts from.
            kwargs: its other arguments, by name.
        """
        owners = {id(parameter): sync for sync in self._syncs if sync.is_armed for parameter in sync.parameters}
        reached = [leaf for leaf in leaves_of(roots) if leaf.requires_grad]
        if kwargs.get("inputs") is not None or owners.keys().isdisjoint(map(id, reached)):
            run(roots, **kwargs)
            return
        grads = torch.autograd.grad(
            roots,
            reached,
            kwargs.get("grad_tensors"),
            retain_graph=kwargs.get("retain_graph"),
            create_graph=bool(kwargs.get("create_graph")),
            allow_unused=True,
        )
        for leaf, grad in zip(reached, grads, strict=True):
            if grad is None:
                continue
            sync = owners.get(id(leaf))
            if sync is None:
                set_grad(leaf, _sum(grad_of(leaf), grad))
            else:
                kept = self._kept.setdefault(sync, {})
                kept[id(leaf)] = _sum(kept.get(id(leaf)), self._scale.true(grad))

    def give(self, sync: GradientSync, failed: bool) -> None:
        """The backward around them has ended: average, and add to what DDP has averaged.

        Args:
            sync: of a model.
            failed: the backward did.
        """
        kept = self._kept.pop(sync, None)
        if kept is None:
            return
        sync.syncs_after_backward = True
        self._world.ledger.note(
            "A backward runs another one inside, as reversible networks do: gradients are averaged after it, not in it"
        )
        if failed:
            return
        means = average(sync.parameters, [kept.get(id(parameter)) for parameter in sync.parameters], self._world)
        for parameter, mean in zip(sync.parameters, means, strict=True):
            if mean is not None:
                set_grad(parameter, _sum(grad_of(parameter), mean))


def _sum(before: Tensor | None, more: Tensor) -> Tensor:
    return more if before is None else before + more
