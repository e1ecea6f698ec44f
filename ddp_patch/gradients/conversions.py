"""The attribute ``.data`` of parameters, while some are under DDP.

Set to another type, device or shape, as by ``Module.to``, a parameter gets another node in autograd's graph, and DDP's
hooks stay behind on the old one. ``Tensor.data`` is inherited from C, so a property on ``nn.Parameter`` stands before
it and is deleted afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

_slot: Any = torch._C.TensorBase.data  # below the property


class Conversions:
    """Tells of every parameter that is converted, while it is on."""

    def __init__(self, converted: Callable[[nn.Parameter], None]) -> None:
        """Start off.

        Args:
            converted: is told of one, before it is.
        """
        self._converted = converted
        self._planted: property | None = None

    def start(self) -> None:
        """Stand before ``.data``."""
        if self._planted is None and "data" not in vars(nn.Parameter):
            self._planted = property(_slot.__get__, self._set, _slot.__delete__)
            nn.Parameter.data = self._planted  # type: ignore[assignment]

    def stop(self) -> None:
        """Give the slot back."""
        if self._planted is not None:
            if vars(nn.Parameter).get("data") is self._planted:
                del nn.Parameter.data
            self._planted = None

    def _set(self, parameter: nn.Parameter, value: Any) -> None:
        # A lazy parameter has no shape yet, and is under no DDP.
        if isinstance(value, Tensor) and not is_lazy(parameter) and _kind(value) != _kind(parameter):
            self._converted(parameter)
        _slot.__set__(parameter, value)


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.device, tensor.layout, tensor.shape
