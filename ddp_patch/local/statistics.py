"""Running means of BatchNorm, and whether they are of a model under DDP."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


class Statistics:
    """Remembers of running means, by identity, whether a model holds them."""

    def __init__(self) -> None:
        """Start with none looked for."""
        self.are_renewed = False  # of whatever BatchNorm is called now
        self._known: dict[int, tuple[weakref.ref[Any], bool]] = {}

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Surround what has every BatchNorm see all rows, those of a copy of a model as well."""
        before, self.are_renewed = self.are_renewed, True
        try:
            yield
        finally:
            self.are_renewed = before

    def are_of(self, models: Iterable[nn.Module], running_mean: Any) -> bool:
        """Tell whether one of the models has a layer that keeps a running mean."""
        known = self._known.get(id(running_mean))
        if known is None or known[0]() is not running_mean:
            layers = (layer for model in models for layer in model.modules())
            is_own = any(vars(its)["_buffers"].get("running_mean") is running_mean for its in layers)
            known = self._known[id(running_mean)] = weakref.ref(running_mean), is_own
        return known[1]

    def forget(self) -> None:
        """There are other models now."""
        self._known.clear()
