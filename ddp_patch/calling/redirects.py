"""Modules whose calls come to us by themselves, whether or not all calls are watched."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import nn

from ..batch.world import World
from ..errors import BatchError
from . import swap

To = Callable[[nn.Module, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class Redirects:
    """Changes where calls of modules go, and takes that back."""

    def __init__(self, to: To) -> None:
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


def is_of_one_rank(world: World, module: nn.Module) -> bool:
    """Tell calls that this rank makes alone, on values of its own: for a sample, in a worker, in a child.

    Raises:
        BatchError: if it changes the module, which would be another one on each rank from then on.
    """
    if World.current is not world:
        return True  # in a child, whose model is its own
    if not (world.fetching.get() or world.reading.get()):
        return False
    if any(each.training and [*each.buffers(recurse=False)] for each in module.modules()):
        raise BatchError(
            f"A dataset or a collate_fn calls {type(module).__name__} in training mode, in which BatchNorm and its "
            "like change: on each rank by the samples that it loads. Write model.eval() before, or do it after the "
            "batch was loaded."
        )
    return True
