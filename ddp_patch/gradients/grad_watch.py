"""The attribute ``.grad``, while some gradients are still this rank's own: whoever reads it makes them global first.

``Tensor.grad`` is inherited from C, so a property on ``torch.Tensor`` stands before it and is deleted afterwards:
nothing is patched, and nothing costs anything, unless gradients are waiting.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_slot: Any = torch._C.TensorBase.grad  # below the property
grad_of: Callable[[Tensor], Tensor | None] = _slot.__get__
set_grad: Callable[[Tensor, Tensor | None], None] = _slot.__set__
_PLAIN = (Tensor, torch.nn.Parameter)


def with_grad(parameters: Iterable[Tensor]) -> Iterator[bool]:
    """Tell of each parameter whether it has a gradient; without a step of Python's for each, since every step asks."""
    return map(operator.is_not, map(grad_of, parameters), itertools.repeat(None))


class GradWatch:
    """Calls ``before_reading(tensor)`` before a gradient is read, while it is on."""

    def __init__(self, before_reading: Callable[[Tensor], None]) -> None:
        """Start off."""
        self._before_reading = before_reading
        self._planted: property | None = None

    def start(self) -> None:
        """Stand before ``.grad``."""
        if self._planted is None:
            self._planted = property(self._get, self._set, self._delete)
            torch.Tensor.grad = self._planted  # type: ignore[assignment]

    def stop(self) -> None:
        """Give the slot back."""
        if self._planted is not None:
            if vars(torch.Tensor).get("grad") is self._planted:
                del torch.Tensor.grad
            self._planted = None

    def _get(self, tensor: Tensor) -> Tensor | None:
        self._before_reading(tensor)
        if type(tensor) in _PLAIN:
            return grad_of(tensor)
        with self._aside():
            return tensor.grad

    def _set(self, tensor: Tensor, value: Tensor | None) -> None:
        if type(tensor) in _PLAIN:
            set_grad(tensor, value)
        else:
            with self._aside():
                tensor.grad = value

    def _delete(self, tensor: Tensor) -> None:
        if type(tensor) in _PLAIN:
            _slot.__delete__(tensor)
        else:
            with self._aside():
                del tensor.grad

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """For subclasses: torch names a function to ``__torch_function__`` by what it finds on the class."""
        was_on = self._planted is not None
        self.stop()
        try:
            yield
        finally:
            if was_on:
                self.start()
