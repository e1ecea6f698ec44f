"""Gradients of an earlier step that the script still holds: DDP overwrites them where ``.grad`` is its buckets' memory.

One process gives every step new gradients, so a list of them keeps its numbers.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .grad_watch import grad_of, with_grad

_SETTLED = 4  # backwards of a DDP, after which its buckets stay where they are
_holders: Any = torch._C._storage_Use_Count  # of a storage: tensors that share it, and Python (torch 2.13)


class KeptGradients:
    """Sees what the script keeps of one model's gradients."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        """Nothing was seen yet."""
        self._parameters = parameters
        self._left: list[tuple[Tensor, Any]] = []  # parameters, and the memory of their gradients
        # Of DDP's buckets. Their views are ``.grad``, so that who keeps one holds no other tensor.
        self._views: list[Tensor] = []
        self._memory: list[Any] = []
        self._baseline: list[int] = []  # holders that are not the script's
        self._backwards = 0
        self.found = False

    def on_buckets_rebuilt(self) -> None:
        """DDP has other buckets now."""
        self._left, self._views, self._memory, self._baseline, self._backwards = [], [], [], [], 0

    def on_backward_end(self, is_shared: bool) -> None:
        """A backward has ended, and the script has not seen its gradients yet.

        Args:
            is_shared: they are in the memory of DDP's buckets.
        """
        pairs = (
            [(parameter, grad_of(parameter)) for parameter in self._parameters] if self._backwards < _SETTLED else []
        )
        if not is_shared:
            self._left = [(p, weakref.ref(grad.untyped_storage())) for p, grad in pairs if grad is not None]
        elif pairs:
            self._backwards += 1
            self._views = [grad for _, grad in pairs if grad is not None]
            del pairs
            memory = {view.untyped_storage().data_ptr(): view.untyped_storage() for view in self._views}
            self._memory = [*memory.values()]
            self._baseline = self._count()

    def on_backward_begin(self) -> bool:
        """A backward begins: note whether the script has kept gradients of the one before.

        Returns:
            Whether this one would write to their memory.
        """
        for parameter, memory in self._left:
            grad = grad_of(parameter)
            if memory() is not None and (grad is None or grad.untyped_storage() is not memory()):
                self.found = True
        self._left = []
        # Who zeroes gradients in place overwrites them on one process too.
        if not self._baseline or all(with_grad(self._parameters)):
            return False
        return any(now > before for now, before in zip(self._count(), self._baseline, strict=True))

    def _count(self) -> list[int]:
        return [*map(sys.getrefcount, self._views), *(_holders(memory._cdata) for memory in self._memory)]
