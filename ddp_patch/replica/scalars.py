"""0-dim outputs under nn.DataParallel: one value per device, which are the ranks."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from ..batch.tensor import BatchTensor
from ..batch.wholes import whole_arguments
from ..batch.world import World
from ..calling.rows import detached
from ..deciding.copies import trial_copy
from ..deciding.isolation import isolated
from ..deciding.tried_forward import TriedForward
from ..errors import BatchError
from ..structure import leaves, map_leaves
from .call_stack import ON_WHOLE
from .replicas import Replicas


class Scalars:
    """Gives 0-dim outputs back as vectors where a module did not run on rows: for short batches, say.

    Every entry is then the value of the whole batch, or its share if the values of parts add up to it.
    """

    _TRIES = 10  # for outputs that are 0, so that nothing can be told from them
    _ROWS = 8  # that a module is tried on: all of a batch need not fit on one device

    def __init__(self, replicas: Replicas, world: World) -> None:
        """Start without having tried a module."""
        self._replicas = replicas
        self._world = world
        # module -> by training mode, of each 0-dim output by path: do the values of parts add up? None: not seen yet
        self._adds_up: weakref.WeakKeyDictionary[nn.Module, dict[bool, dict[str, bool | None]]] = (
            weakref.WeakKeyDictionary()
        )
        self._tries: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()

    def learn(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dim: int) -> None:
        """Try the module on a batch and its halves, once for each mode. Before the call, which may leave a graph."""
        adds_up = self._adds_up.setdefault(module, {})
        tries = self._tries.get(module, 0)
        if module.training in adds_up and (tries >= self._TRIES or None not in adds_up[module.training].values()):
            return
        rows, at = batch_of(args, kwargs, dim)
        if rows is None or rows < 2:
            return
        self._tries[module] = tries + 1
        args, kwargs = whole_arguments(args, kwargs)
        local = self._try(module, args, kwargs, rows, at)
        adds_up[module.training] = self._world.share([local])[0][0]  # rank 0's view of it, to decide alike

    def as_vectors(self, module: nn.Module, result: Any, rows: int | None, at: int) -> Any:
        """One value per device that DataParallel would have used."""
        paths = {id(leaf): path for path, leaf in leaves(result) if isinstance(leaf, Tensor) and leaf.dim() == 0}
        if not paths:
            return result
        count = self._world.size if rows is None else min(rows, self._world.size)
        adds_up = self._adds_up.get(module, {}).get(module.training, {})

        def vector(leaf: Any) -> Any:
            if id(leaf) not in paths:
                return leaf
            path = paths[id(leaf)]
            if rows is None or rows < 2:  # every device computes the same, or there is one
                return leaf.reshape(1).repeat(count)
            if path not in adds_up:
                raise BatchError(
                    f"{type(module).__name__} under nn.DataParallel returned a 0-dim tensor (output{path}) for a batch "
                    f"that was not dealt to the ranks, and it could not be tried on parts of the batch, so it cannot "
                    "be told what each device would have returned. Return one entry per row from forward and reduce "
                    "over them outside, or write nn.DataParallel(model, device_ids=[0]) for the scalar itself."
                )
            if not adds_up[path] or leaf.dtype is torch.bool:
                return leaf.reshape(1).repeat(count)
            if leaf.is_floating_point() or leaf.is_complex():
                return (leaf / count).reshape(1).repeat(count)
            return (leaf + torch.arange(count, device=leaf.device)) // count  # adds up to it exactly

        return map_leaves(vector, result)

    def _try(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], rows: int, at: int
    ) -> dict[str, bool | None]:
        few = min(rows, self._ROWS)
        half = few // 2
        try:
            twin = trial_copy(module)
            with self._replicas.forwards.at_position(ON_WHOLE), isolated(), TriedForward(module):
                whole, first, second = (
                    _scalars_of(twin(*_part(args, rows, at, *span), **_part(kwargs, rows, at, *span)))
                    for span in ((0, few), (0, half), (half, few - half))
                )
        except Exception:  # noqa: BLE001 — it runs the author's code; as_vectors says what follows, if it matters
            return {}
        adds_up: dict[str, bool | None] = {}
        for path, value in whole.items():
            if path in first and path in second:
                together = first[path] + second[path]
                mean = (first[path] * half + second[path] * (few - half)) / few
                adds_up[path] = None if together == mean else abs(value - together) < abs(value - mean)
        return adds_up


def batch_of(args: tuple[Any, ...], kwargs: dict[str, Any], dim: int) -> tuple[int | None, int]:
    """How many rows DataParallel would scatter, and along which dimension; None if there is nothing to scatter."""
    tensors = [leaf for _, leaf in leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    for leaf in tensors:
        if isinstance(leaf, BatchTensor):
            return leaf._layout.total, leaf._layout.dim
    for leaf in tensors:
        if leaf.dim() > dim:
            return leaf.shape[dim], dim
    return (None if args or kwargs else 1), dim


def _part(value: Any, rows: int, at: int, start: int, length: int) -> Any:
    def cut(leaf: Any) -> Any:
        scattered = isinstance(leaf, Tensor) and leaf.dim() > at and leaf.shape[at] == rows
        return leaf.narrow(at, start, length) if scattered else leaf

    return detached(map_leaves(cut, value))


def _scalars_of(result: Any) -> dict[str, float]:
    return {
        path: leaf.item()
        for path, leaf in leaves(result)
        if isinstance(leaf, Tensor) and leaf.dim() == 0 and not leaf.is_complex()
    }
