"""Wrappers of functions that torch writes in Python, under ``torch.set_default_device`` and other function modes."""

from __future__ import annotations

import functools
from typing import Any

from torch.overrides import has_torch_function_unary, is_tensor_like

from ..patch import Args, Kwargs, Wrapper

_NAMES = ("tensors", "outputs", "inputs", "input")
_MANY = (list, tuple)


def below_modes(wrapper: Wrapper, heard: int = 2) -> Wrapper:
    """Have a wrapper called once where a ``TorchFunctionMode`` is on.

    Such a function hands itself over to the mode by its name, which is the wrapper's, and the mode calls that
    (``torch.overrides.handle_torch_function``). So the call is let through until no mode is above it.

    Args:
        wrapper: of the function.
        heard: so many arguments may hold tensors, by which a mode hears of a call: not of edges of a graph alone.
    """

    @functools.wraps(wrapper)
    def below(session: Any, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        if has_torch_function_unary(None) and is_heard(instance, args, kwargs, heard):  # of no tensor: by modes alone
            return wrapped(*args, **kwargs)
        return wrapper(session, wrapped, instance, args, kwargs)

    return below


def is_heard(instance: Any, args: Args, kwargs: Kwargs, heard: int) -> bool:
    """Tell whether a mode that is on hears of a call."""
    arguments = [instance, *args[:heard], *map(kwargs.get, _NAMES)]
    return any(is_tensor_like(value) for each in arguments for value in (each if type(each) in _MANY else [each]))
