"""What the script trains: the parameters of its optimizers."""

from __future__ import annotations

import weakref
from typing import Any


class Trained:
    """Knows the parameters of the optimizers that are alive."""

    def __init__(self) -> None:
        """Start with none."""
        # By identity, in turn: sets have another order on every rank.
        self._optimizers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._ids: set[int] | None = None

    def knows(self, optimizer: Any) -> bool:
        """Tell whether an optimizer was added."""
        return self._optimizers.get(id(optimizer)) is optimizer

    def add(self, optimizer: Any) -> None:
        """Remember an optimizer, or look at its groups anew."""
        self._optimizers[id(optimizer)] = optimizer
        self._ids = None

    def parameters(self) -> list[Any]:
        """The parameters, in their order and that of the optimizers."""
        groups = [group for optimizer in self._optimizers.values() for group in optimizer.param_groups]
        return list({id(parameter): parameter for group in groups for parameter in group["params"]}.values())

    def of_living(self) -> set[int]:
        """Identities of the parameters, after optimizers have gone."""
        self._ids = None
        return self.ids()

    def rates(self) -> list[float]:
        """The learning rates of their groups, where these have one."""
        groups = [group for optimizer in self._optimizers.values() for group in optimizer.param_groups]
        return [float(group["lr"]) for group in groups if group.get("lr") is not None]

    def ids(self) -> set[int]:
        """Identities of the parameters."""
        if self._ids is None:
            self._ids = set(map(id, self.parameters()))
        return self._ids
