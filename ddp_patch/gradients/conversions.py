"""What gives parameters other memory, while some are under DDP.

Where ``.data`` is set to another type, device, shape or order, as by ``Module.to``, a parameter gets another node in
autograd's graph, and DDP's hooks stay behind on the old one. So it does by ``set_``, as torch's parametrizations call
it when they are registered, and by ``resize_`` (torch 2.13, RESET_GRAD_ACCUMULATOR in gen_variable_type.py). ``Tensor``
inherits these from C, so what stands before them on ``nn.Parameter`` is deleted afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

_slot: Any = torch._C.TensorBase.data  # below the property
_RESETTING = ("set_", "resize_", "resize_as_")


class Conversions:
    """Tells of every parameter that is converted, while it is on."""

    def __init__(self, converted: Callable[[nn.Parameter], None]) -> None:
        """Start off.

        Args:
            converted: is told of one, before it is.
        """
        self._converted = converted
        self._planted: dict[str, Any] = {}

    def start(self) -> None:
        """Stand before them."""
        if not self._planted and "data" not in vars(nn.Parameter):
            self._planted = {"data": property(_slot.__get__, self._set, _slot.__delete__)}
            self._planted |= {name: self._resetting(name) for name in _RESETTING}
            for name, planted in self._planted.items():
                setattr(nn.Parameter, name, planted)

    def stop(self) -> None:
        """Give the slots back."""
        for name, planted in self._planted.items():
            if vars(nn.Parameter).get(name) is planted:
                delattr(nn.Parameter, name)
        self._planted = {}

    def _set(self, parameter: nn.Parameter, value: Any) -> None:
        # A lazy parameter has no shape yet, and is under no DDP.
        if isinstance(value, Tensor) and not is_lazy(parameter) and _kind(value) != _kind(parameter):
            self._converted(parameter)
        _slot.__set__(parameter, value)

    def _resetting(self, name: str) -> Callable[..., Any]:
        method = getattr(Tensor, name)

        @functools.wraps(method)
        def call(parameter: nn.Parameter, *args: Any, **kwargs: Any) -> Any:
            if not is_lazy(parameter):
                self._converted(parameter)
            return method(parameter, *args, **kwargs)

        return call


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    # With other strides the node stays, but DDP gives gradients whose entries lie as they did (torch 2.13).
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    return tensor.dtype, tensor.device, tensor.layout, tensor.shape, strides
