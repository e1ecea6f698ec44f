"""A backward of a mean that begins before it is known that no target is to be ignored."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Any

import torch

from ..batch.pending import PendingReduction
from ..batch.world import World
from ..errors import BatchError
from ..structure import leaves_below
from .gradient_sync import GradientSync
from .parameter_hooks import ParameterHooks


def _leaves(source: Any) -> list[tuple[Any, int]]:
    """List the tensors that a graph gives gradients to, and who has each in Python."""
    return [(leaf, sys.getrefcount(leaf)) for leaf in leaves_below([source])]


# Of one that a forward has made and let go of, as ``torch.zeros(2, 3, requires_grad=True).index_add(...)``.
with torch.inference_mode(False), torch.enable_grad():
    _OF_GRAPH = max(uses for _, uses in _leaves((torch.zeros(1, device="cpu", requires_grad=True) * 2).grad_fn))


class Assumption:
    """Assumes of losses that no target is ignored, and corrects the gradients where some were."""

    def __init__(self, world: World, hooks: ParameterHooks) -> None:
        """Assume nothing yet.

        Args:
            world: the ranks.
            hooks: the script's, on parameters, which would be called with gradients of another scale.
        """
        self._world = world
        self._hooks = hooks
        self._had_ignored = False  # a loss had targets to ignore

    def begin(self, syncs: Iterable[GradientSync], reduction: PendingReduction, source: Any) -> GradientSync | None:
        """Let a backward begin before the count is known, if that can be corrected.

        Args:
            syncs: of the models.
            reduction: the loss, with a count.
            source: the node that the backward comes by.

        Returns:
            whose gradients it gives; None where the count is to be known first.
        """
        if self._had_ignored or math.isnan(float(reduction.expected)):
            return None
        if self._world.looks_at_gradients or self._world.accelerated:
            return None  # to look at the true count would wait for the device; to sum it first does not
        for sync in syncs:
            if sync.may_be_scaled(source) and not self._hooks.on_any(sync.all):
                reduction.assumed = True
                return sync
        return None

    def correct(self, sync: GradientSync, reduction: PendingReduction, source: Any) -> None:
        """Multiply the gradients of a backward that is over, now that the true count has come.

        Args:
            sync: that ``begin`` gave.
            reduction: the loss.
            source: the node that the backward began at.

        Raises:
            BatchError: where it gave gradients to something else as well.
        """
        true = reduction.look_at_count()
        if true == reduction.expected:
            return
        # Every gradient of this backward came through the loss, so all of them are wrong by the same factor.
        self._had_ignored = True
        others = [uses > _OF_GRAPH for leaf, uses in _leaves(source) if id(leaf) not in sync.ids]
        # Garbage of one rank may hold a leaf that no other rank's does.
        if others and int(self._world.all_reduce(torch.tensor(int(any(others)), device=self._world.device))):
            raise BatchError(
                "A loss with targets to ignore has gradients for tensors that are no parameters of its model, which "
                "were computed as if no target were to be ignored. Write float(loss) before loss.backward()."
            )
        if true:
            sync.scale(float(reduction.expected) / true)
