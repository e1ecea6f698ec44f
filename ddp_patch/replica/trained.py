"""What the script trains: the parameters of its optimizers."""

from __future__ import annotations

import weakref
from typing import Any


class Trained:
    """Knows the parameters of the optimizers that are alive."""

    def __init__(self) -> None:
        """Start with none."""
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._ids: set[int] | None = None

    def knows(self, optimizer: Any) -> bool:
        """Tell whether an optimizer was added."""
        return optimizer in self._optimizers

    def add(self, optimizer: Any) -> None:
        """Remember an optimizer, or look at its groups anew."""
        self._optimizers.add(optimizer)
        self._ids = None

    def parameters(self) -> list[Any]:
        """The parameters, in their order."""
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        return list({id(parameter): parameter for group in groups for parameter in group["params"]}.values())

    def ids(self) -> set[int]:
        """Identities of the parameters."""
        if self._ids is None:
            self._ids = {
                id(parameter)
                for optimizer in self._optimizers
                for group in optimizer.param_groups
                for parameter in group["params"]
            }
        return self._ids
