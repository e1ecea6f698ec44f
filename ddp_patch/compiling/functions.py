"""Functions that a script compiles, called on batches: in parts on rows, compiled, where they are traced whole.

Others, which TorchDynamo cannot trace as one graph (a step that calls backward, a loss that prints), run as written,
with the forwards of models and the steps of optimizers in them compiled.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..batch.packed import PackedRows
from ..batch.pending_tensor import PendingTensor
from ..batch.tensor import BatchTensor
from ..batch.world import World
from ..calling.compiled import Compiling, stance
from ..replica.replicas import Replicas
from ..structure import leaves
from .traced import REFUSED, Traced

_BATCHES = (BatchTensor, PackedRows, PendingTensor)


class Functions:
    """Carries out calls of compiled functions."""

    def __init__(self, replicas: Replicas, world: World) -> None:
        """Start without any."""
        self._replicas = replicas
        self._world = world

    def accepting_batches(
        self, run: Callable[..., Any], how: dict[str, Any], function: Callable[..., Any] | None
    ) -> Callable[..., Any]:
        """Give a compiled function that may be called on batches.

        Args:
            run: what torch compiled the script's function to.
            how: arguments of ``torch.compile``.
            function: the script's, if it may be traced.
        """
        here, compiling = weakref.ref(self), Compiling(how)
        traced = None if function is None else Traced(function, compiling.how)

        @functools.wraps(run)
        def called(*args: Any, **kwargs: Any) -> Any:
            functions = here()
            if functions is None or World.current is not functions._world or functions._is_elsewhere():
                return run(*args, **kwargs)
            if not any(isinstance(leaf, _BATCHES) for _, leaf in leaves((args, kwargs))):
                return run(*args, **kwargs)
            result = REFUSED if traced is None else traced.called(functions._world, args, kwargs)
            return functions._on_batches(compiling, run, args, kwargs) if result is REFUSED else result

        return called

    def _is_elsewhere(self) -> bool:
        """Tell calls inside a model, a backward or a trial, or in what is traced: they are part of that."""
        world = self._world
        return (
            self._replicas.is_at_work()
            or world.observation is not None
            or world.skips_collectives
            or world.muted.get()
            or world.reading.get()
            or world.fetching.get()
        )

    def _on_batches(self, compiling: Compiling, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        forwards = self._replicas.forwards
        before, forwards.compiling = forwards.compiling, compiling
        try:
            with compiling.steps_of(self._replicas.trained.optimizers()), stance("force_eager"):
                return run(*args, **kwargs)
        finally:
            forwards.compiling = before


def is_taken(function: Any) -> bool:
    """Tell modules, functions, and methods of what is no optimizer, that a script compiles."""
    if isinstance(function, types.MethodType):
        owner = function.__self__
        return isinstance(function.__func__, types.FunctionType) and not isinstance(owner, torch.optim.Optimizer)
    return isinstance(function, (types.FunctionType, nn.Module))
