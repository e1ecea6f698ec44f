"""Wrappers of functions that torch writes in Python, under ``torch.set_default_device`` and other function modes."""

from __future__ import annotations

import functools
from typing import Any

from torch.overrides import has_torch_function_unary

from ..patch import Args, Kwargs, Wrapper


def below_modes(wrapper: Wrapper) -> Wrapper:
    """Have a wrapper called once where a ``TorchFunctionMode`` is on.

    Such a function hands itself over to the mode by its name, which is the wrapper's, and the mode calls that
    (``torch.overrides.handle_torch_function``). So the call is let through until no mode is above it.
    """

    @functools.wraps(wrapper)
    def below(session: Any, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        if has_torch_function_unary(None):  # of no tensor: only modes say so
            return wrapped(*args, **kwargs)
        return wrapper(session, wrapped, instance, args, kwargs)

    return below
