"""Parameters that no model of the script's holds, whose gradients DDP does not average."""

from __future__ import annotations

from typing import Any

from ..batch.world import World
from ..gradients.accumulation import AccumulationSchedule
from ..gradients.averages import average_flat, in_parts
from ..gradients.watch import grad_of
from ..replica.trained import Trained


class Beside:
    """Parameters that an optimizer trains and no model of the script's holds: averaged when somebody looks."""

    def __init__(self, world: World) -> None:
        """Know of none yet."""
        self.pending = False
        self.ids: set[int] = set()
        self.parameters: list[Any] | None = None  # None: to be looked for
        self.schedule = AccumulationSchedule()
        self._reached: set[int] = set()  # that had a gradient
        self._world = world

    def ended(self, trained: Trained, held: set[int]) -> bool:
        """A backward of the script has ended; tell whether that may have left something to average.

        Args:
            trained: what optimizers train.
            held: identities of the parameters of models.
        """
        if self.parameters is None:
            self.parameters = [parameter for parameter in trained.parameters() if id(parameter) not in held]
            self.ids = {id(parameter) for parameter in self.parameters}
        was_pending = self.pending
        self.pending = any(parameter.requires_grad for parameter in self.parameters)
        if not self.ids <= self._reached:
            self._reached |= {id(parameter) for parameter in self.parameters if grad_of(parameter) is not None}
        return self.pending or was_pending

    def is_rest(self, trained: Trained, held: set[int]) -> bool:
        """Tell whether these are all that no model holds, since backwards reach them and no model was called.

        Args:
            trained: what optimizers train.
            held: identities of all parameters of models.
        """
        rest = [parameter for parameter in trained.parameters() if id(parameter) not in held]
        return all(id(parameter) in self._reached or not parameter.requires_grad for parameter in rest)

    def settle(self) -> None:
        """Average them."""
        if self.pending and self.parameters:
            self.pending = False
            for part in in_parts([parameter for parameter in self.parameters if parameter.requires_grad]):
                average_flat(part, self._world)
