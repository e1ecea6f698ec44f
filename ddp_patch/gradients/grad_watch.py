"""The attribute ``.grad``, while some gradients are still this rank's own: whoever reads it makes them global first.

``Tensor.grad`` is inherited from C, so a descriptor on ``torch.Tensor`` stands before it and is deleted afterwards:
nothing is patched, and nothing costs anything, unless gradients are waiting.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

_slot: Any = torch._C.TensorBase.grad  # below the property
grad_of: Callable[[Tensor], Tensor | None] = _slot.__get__
set_grad: Callable[[Tensor, Tensor | None], None] = _slot.__set__


def with_grad(parameters: Iterable[Tensor]) -> Iterator[bool]:
    """Tell of each parameter whether it has a gradient; without a step of Python's for each, since every step asks."""
    return map(operator.is_not, map(grad_of, parameters), itertools.repeat(None))


class GradWatch:
    """Calls ``before_reading(tensor)`` before a gradient is read, while it is on."""

    def __init__(self, before_reading: Callable[[Tensor], None]) -> None:
        """Start off."""
        self._before_reading = before_reading

    def start(self) -> None:
        """Stand before ``.grad``."""
        torch.Tensor.grad = self  # type: ignore[assignment]

    def stop(self) -> None:
        """Give the slot back."""
        if vars(torch.Tensor).get("grad") is self:
            del torch.Tensor.grad

    def __get__(self, tensor: Tensor | None, kind: type | None = None) -> Any:
        """Read the gradient; of the class, torch's slot, by which torch names what is read to a subclass."""
        if tensor is None:
            return _slot
        self._before_reading(tensor)
        return grad_of(tensor)

    def __set__(self, tensor: Tensor, value: Tensor | None) -> None:
        """Replace the gradient."""
        set_grad(tensor, value)

    def __delete__(self, tensor: Tensor) -> None:
        """Take the gradient away."""
        _slot.__delete__(tensor)
