"""Parameters that no model of the script's holds, whose gradients DDP does not average."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from ..batch.world import World
from ..errors import GradientError
from ..gradients.accumulation import AccumulationSchedule
from ..gradients.averages import average_flat, in_buckets
from ..gradients.grad_watch import grad_of
from ..ledger import script_line
from ..replica.trained import Trained
from .local_numbers import digest


class Beside:
    """Parameters that an optimizer trains and no model of the script's holds: averaged when somebody looks."""

    def __init__(self, world: World) -> None:
        """Know of none yet."""
        self.has_pending_gradients = False
        self.ids: set[int] = set()
        self.parameters: list[Any] | None = None  # None: to be looked for
        self.schedule = AccumulationSchedule()
        self._reached: set[int] = set()  # that had a gradient
        self._compared: Any = WeakIdKeyDictionary()
        self._world = world

    def ended(self, trained: Trained, model_ids: set[int]) -> bool:
        """A backward of the script has ended; tell whether that may have left something to average.

        Args:
            trained: what optimizers train.
            model_ids: identities of the parameters of models.
        """
        if self.parameters is None:
            self.parameters = [parameter for parameter in trained.parameters() if id(parameter) not in model_ids]
            self.ids = {id(parameter) for parameter in self.parameters}
            self._compare([each for each in self.parameters if not isinstance(each, nn.Parameter)])
        was_pending = self.has_pending_gradients
        self.has_pending_gradients = any(parameter.requires_grad for parameter in self.parameters)
        if not self.ids <= self._reached:
            self._reached |= {id(parameter) for parameter in self.parameters if grad_of(parameter) is not None}
        return self.has_pending_gradients or was_pending

    def _compare(self, tensors: list[Tensor]) -> None:
        """See that tensors begin alike: DDP sends those of modules to all ranks, as it is made.

        Raises:
            GradientError: on every rank, if one does not.
        """
        new = [tensor for tensor in tensors if tensor not in self._compared]
        if not new:
            return
        for tensor in new:
            self._compared[tensor] = True
        of_ranks = [values[0] for values in self._world.share([[digest(tensor) for tensor in new]])]
        for tensor, *its in zip(new, *of_ranks, strict=True):
            if len(set(its)) > 1:
                shape = tuple(tensor.shape)
                raise GradientError(
                    f"{script_line()}: a tensor of shape {shape} that an optimizer trains, and no module holds, is "
                    "another one on each rank, and view='local' averages its gradients. Draw it before the first "
                    "epoch, or from a generator of its own (torch.Generator().manual_seed(0)); one that has a row for "
                    "each row of the batch needs view='global'."
                )

    def is_rest(self, trained: Trained, model_ids: set[int]) -> bool:
        """Tell whether these are all that no model holds, since backwards reach them and no model was called.

        Args:
            trained: what optimizers train.
            model_ids: identities of all parameters of models.
        """
        rest = [parameter for parameter in trained.parameters() if id(parameter) not in model_ids]
        return all(id(parameter) in self._reached or not parameter.requires_grad for parameter in rest)

    def make_global(self) -> None:
        """Average them."""
        if self.has_pending_gradients and self.parameters:
            self.has_pending_gradients = False
            for part in in_buckets([parameter for parameter in self.parameters if parameter.requires_grad]):
                average_flat(part, self._world)
