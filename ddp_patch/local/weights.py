"""What a rank's rows count in the mean of all ranks' rows, where ranks have not equally many (``tail="exact"``).

A backward begins with the weight of its batch. So every gradient of it is weighed once, whatever it goes through: two
models one after the other, a method beside ``forward``, a parameter beside the models; and what ``torch.autograd.grad``
gives to a penalty is the gradient itself. Outputs keep the weight of their batch, as a backward can have but one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import BatchError
from ..ledger import script_line
from ..structure import map_leaves


class Weights:
    """The weights of batches; None where all ranks have equally many rows."""

    def __init__(self, is_used: bool) -> None:
        """Start without a batch.

        Args:
            is_used: ranks may have one row more or less.
        """
        self.is_used = is_used
        self.now: float | None = None  # of the batch that the script works on
        self.begun: float | None = None  # of the backward that runs
        self.is_backward = False

    def mark(self, outputs: Any) -> Any:
        """Have a model's outputs keep the weight of their batch."""
        return map_leaves(self._marked, outputs) if self.is_used else outputs

    def weigh(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Begin a backward: weigh its ``tensors``.

        Args:
            args: of ``torch.autograd.backward``.
            kwargs: likewise.
        """
        self.begun = self.now
        weight = self.now
        if weight is None:
            return args, kwargs
        given = args[0] if args else kwargs["tensors"]
        tensors = (given,) if isinstance(given, Tensor) else tuple(given)
        weighed = tuple(_Weighed.apply(tensor, weight) for tensor in tensors)  # type: ignore[no-untyped-call]  # not annotated (torch 2.13)
        return (weighed, *args[1:]), {name: value for name, value in kwargs.items() if name != "tensors"}

    def _marked(self, leaf: Any) -> Any:
        if not (isinstance(leaf, Tensor) and leaf.requires_grad):
            return leaf
        return _Marked.apply(leaf, self, self.now)  # type: ignore[no-untyped-call]  # likewise

    def meets(self, weight: float | None) -> None:
        """A backward has come to outputs of a batch.

        Raises:
            BatchError: when they count otherwise than what it began with.
        """
        if self.is_backward and weight != self.begun:
            raise BatchError(
                f"{script_line()}: a backward goes through batches of which the ranks have other shares, so that none "
                "of them can be weighed by its rows. Call backward for each batch, or write tail='pad'."
            )


class _Weighed(torch.autograd.Function):
    """The same value; its gradient counts more or less."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, weight: float) -> Tensor:
        ctx.weight = weight
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.weight, None


class _Marked(torch.autograd.Function):
    """The same value, of a batch with a weight."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, weights: Weights, weight: float | None) -> Tensor:
        ctx.weights, ctx.weight = weights, weight
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        ctx.weights.meets(ctx.weight)
        return grads[0], None, None
