"""Modules whose calls come to us by themselves, whether or not all calls are watched."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import nn

from . import swap


class Redirects:
    """Changes where calls of modules go, and takes that back."""

    def __init__(self, to: Callable[[nn.Module, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]) -> None:
        """Redirect none yet.

        Args:
            to: gets a module, its author's ``__call__``, and the arguments.
        """
        self._to = to
        self._modules: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()  # by identity

    def __contains__(self, module: nn.Module) -> bool:
        """Tell whether a module's calls are redirected."""
        return id(module) in self._modules

    def add(self, module: nn.Module) -> None:
        """Redirect the calls of a module, if they are not."""
        if module not in self:
            swap.redirect_calls(module, self._to)
            self._modules[id(module)] = module

    def close(self) -> None:
        """Give every module its class back."""
        for module in self._modules.values():
            swap.restore(module)
        self._modules.clear()
