"""Running means of BatchNorm, and whether they are of a model under DDP."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from ..replica.trained import Trained


class Statistics:
    """Remembers of running means, by identity, whether a model holds them."""

    def __init__(self, trained: Trained, models: Callable[[], list[nn.Module]]) -> None:
        """Start with none looked for.

        Args:
            trained: what the script trains.
            models: gives those under DDP.
        """
        self.are_renewed = False  # of whatever BatchNorm is called now
        # How often a BatchNorm took those of all rows without gradients, where ranks wait for each other.
        self.no_grad_syncs = 0
        self._trained = trained
        self._models = models
        self._cached: dict[int, tuple[weakref.ref[Any], bool]] = {}

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Surround what has every BatchNorm see all rows, those of a copy of a model as well."""
        before, self.are_renewed = self.are_renewed, True
        try:
            yield
        finally:
            self.are_renewed = before

    def are_of_all(self, inside: bool, running_mean: Any, weight: Any) -> bool:
        """Tell whether a BatchNorm is of what the script trains, also where it is called past its model's call.

        A method beside ``forward`` does so, and a checkpoint that computes again in a backward.

        Args:
            inside: a model's call, now.
            running_mean: its own; None where it keeps none.
            weight: likewise.
        """
        if inside or self.are_renewed or (weight is not None and id(weight) in self._trained.ids()):
            return True
        return running_mean is not None and self._is_of_a_model(running_mean)

    def _is_of_a_model(self, running_mean: Any) -> bool:
        entry = self._cached.get(id(running_mean))
        if entry is None or entry[0]() is not running_mean:
            layers = (layer for model in self._models() for layer in model.modules())
            is_own = any(vars(its)["_buffers"].get("running_mean") is running_mean for its in layers)
            entry = self._cached[id(running_mean)] = weakref.ref(running_mean), is_own
        return entry[1]

    def forget(self) -> None:
        """There are other models now."""
        self._cached.clear()
