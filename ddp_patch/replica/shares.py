"""What part of a forward's work is split over the ranks, for the report."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ..batch.layout import Layout
from ..batch.world import World
from ..calling.calls import Call, described
from .forwards import Forwards


class WorkShares:
    """Counts one forward of each model, once everything in it is decided."""

    def __init__(self, world: World, forwards: Forwards) -> None:
        """Start without any."""
        self._world = world
        self._forwards = forwards
        self._counted: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()  # by identity
        self._without: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()

    def without_batch(self, call: Call) -> Any:
        """Carry out a call that is given no batch, and note the module, if it is trained by itself."""
        is_training = not self._forwards.intercept_depth and torch.is_grad_enabled() and call.module.training
        if is_training and self._without.get(id(call.module)) is not call.module:
            self._without[id(call.module)] = call.module
            self._world.ledger.without_batch[described(call.module)] = None
        return self._forwards.on_whole(call)

    @contextmanager
    def counted(self, module: nn.Module, layout: Layout, was_news: Callable[[], bool]) -> Iterator[None]:
        """Surround a call of the script.

        Args:
            module: that is called.
            layout: of the batch.
            was_news: tells afterwards whether something was found out in the call.
        """
        if self._counted.get(id(module)) is module:
            yield
            return
        with _Operations(self._world, self._forwards) as operations:
            yield
        if was_news():
            return
        self._counted[id(module)] = module
        if operations.split or operations.repeated:
            split = operations.split * layout.total / layout.counts[self._world.rank]
            self._world.ledger.work.setdefault(described(module), split / (split + operations.repeated))


class _Operations(TorchDispatchMode):
    """Counts operations of products, convolutions and attention, as torch counts them."""

    def __init__(self, world: World, forwards: Forwards) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.split = 0  # of this rank's rows
        self.repeated = 0  # that every rank does
        self._world = world
        self._forwards = forwards

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            count = formula(*args, **kwargs, out_val=result)
            of_rows = self._world.working_for is not None and not self._world.is_replicated
            if self._forwards.computes_rows or of_rows:
                self.split += count
            else:
                self.repeated += count
        return result
