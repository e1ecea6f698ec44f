"""Autograd functions of the script's own, where a batch reaches them outside of what computes rows.

Below torch functions a batch has no graph, so such a function gets the whole batch. It is decided on as a module is
that is called inside a forward on batches: tried, watched for what its code reads, and given rows if it keeps them
apart.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..batch.layout import Layout
from ..batch.world import World
from ..calling.calls import Call
from .replicas import Replicas

_ARGUMENT_TYPES = (Tensor, bool, int, float, complex, str, type(None), torch.Size, torch.dtype)
_MADE_IN_CALLS = "<locals>"  # of the name of a class that a function makes, perhaps another one each time


class Applied(nn.Module):
    """Stands for a function in what decides on modules."""

    stands_for_function = True  # to which any float of a magnitude is as good, if it never looks at it

    def __init__(self, function: Any) -> None:
        """Hold what its call comes to.

        Args:
            function: the class, whose ``apply`` is called.
        """
        super().__init__()
        self.function = function
        self.halves = (function.forward, function.setup_context, function.backward)

    def forward(self, *args: Any) -> Any:
        """Apply it."""
        return self.function.apply(*args)


class AppliedFunctions:
    """Carries out calls of such functions."""

    def __init__(self, replicas: Replicas, world: World) -> None:
        """Start without any."""
        self._replicas = replicas
        self._world = world
        self._applied: dict[Any, Applied] = {}
        self.layouts: dict[Any, list[Layout | None]] = {}  # of what a function gave when it was observed last
        self._running: list[Applied] = []

    def takes(self, function: Any, args: tuple[Any, ...]) -> Applied | None:
        """Give what stands for a function that is called on batches; None where it is a part of something decided.

        Args:
            function: that is called.
            args: for it. What can be written to, such as a list, would be written to by trials.
        """
        world, forwards = self._world, self._replicas.forwards
        is_replayed = self._replicas.replay.is_on  # in the part of a backward that computes a forward again
        if (
            world.observation is not None
            or forwards.is_bypassed
            or (self._replicas.backwards.is_busy and not is_replayed)
        ):
            return None
        if World.current is not world or world.skips_collectives or world.muted.get() or world.reading.get():
            return None
        if not all(isinstance(arg, _ARGUMENT_TYPES) for arg in args) or _MADE_IN_CALLS in function.__qualname__:
            return None
        if world.fetching.get():
            return None
        stands = self._applied.get(function)
        if stands is None:
            kind = type(f"{function.__name__}.apply", (Applied,), {})
            stands = self._applied[function] = kind(function)
        return None if stands in self._running else stands

    def layouts_again(self, function: Any) -> list[Layout | None]:
        """Give the layouts of what a function gave, if its call is observed once more in a checkpoint's backward."""
        is_observed = self._replicas.replay.is_on and self._replicas.forwards.is_bypassed
        is_replayed = is_observed and any(stands.function is function for stands in self._running)
        return self.layouts.get(function, []) if is_replayed else []

    def call(self, stands: Applied, args: tuple[Any, ...]) -> Any:
        """Carry out a call.

        Args:
            stands: what ``takes`` gave.
            args: of the function.
        """
        self._running.append(stands)
        try:
            with self._replicas.forwards.intercepting_submodules():
                return self._replicas.call(Call(stands, stands.forward, args, {}))
        finally:
            self._running.pop()
