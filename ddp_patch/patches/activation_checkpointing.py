"""torch.utils.checkpoint: what backward computes again is what forward computed, on rows and with the same draws."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from ..batch.tensor import BatchTensor
from ..calling.call_mode_replay import ModuleCallMode
from ..patch import Args, Kwargs, Patch
from ..session import Session


def _checkpoint(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    def bind(function: Callable[..., Any], *inputs: Any, use_reentrant: bool | None = None, **options: Any) -> Any:
        if session.world.observation is not None:
            session.world.observation.kept.allow((inputs, options))
        again = _again(session, function, options.get("preserve_rng_state", True))
        arguments = [_place(inputs), *map(_Hidden.of, inputs)]
        if use_reentrant is False:
            return wrapped(again, *arguments, use_reentrant=False, **options)
        # The reentrant form runs a backward inside the backward, past DDP's back. The other one computes the same,
        # except for what belongs to the reentrant form: without an input that wants a gradient there is none, and
        # all of the function is computed again, which BatchNorm's running statistics tell.
        wants_grad = any(isinstance(value, Tensor) and value.requires_grad for value in inputs)
        if use_reentrant is None or not wants_grad:  # which torch says something about
            wrapped(_same, torch.zeros((), device="cpu", requires_grad=wants_grad), use_reentrant=use_reentrant)
        if not wants_grad:
            with torch.no_grad():
                return function(*inputs)
        return wrapped(again, *arguments, use_reentrant=False, early_stop=False, **options)

    return bind(*args, **kwargs)


def _place(inputs: tuple[Any, ...]) -> Tensor | None:
    """Give a tensor where batches are: torch keeps the generators of devices that it sees among the inputs."""
    batch = next((value for value in inputs if isinstance(value, BatchTensor)), None)
    return None if batch is None or batch.device.type == "cpu" else torch.empty(0, device=batch.device)


def _same(value: Tensor) -> Tensor:
    return value


class _Hidden:
    """A batch that torch keeps as it keeps what is no tensor: its input saver would gather it."""

    def __init__(self, batch: BatchTensor) -> None:
        self.batch = batch

    @staticmethod
    def of(value: Any) -> Any:
        """Hide a batch."""
        return _Hidden(value) if isinstance(value, BatchTensor) else value

    @staticmethod
    def out_of(value: Any) -> Any:
        """Give it back."""
        return value.batch if isinstance(value, _Hidden) else value


def _again(session: Session, function: Callable[..., Any], keep_draws: bool) -> Callable[..., Any]:
    """Give a function whose second call, inside backward, meets what the first met."""
    replicas, world = session.replicas, session.world
    position = replicas.forwards.position
    # Torch keeps the one in place.
    torch_states = replicas.generators.torch_states() if keep_draws and not replicas.forwards.computes_rows else None
    decisions: list[ModuleCallMode] | None = None

    def run(_: Tensor | None, *hidden: Any, **kwargs: Any) -> Any:
        nonlocal decisions
        args = tuple(map(_Hidden.out_of, hidden))
        if decisions is None:
            decisions = []
            seen = world.observation
            with replicas.replay.recording(decisions), nullcontext() if seen is None else seen.recomputed():
                return function(*args, **kwargs)
        redrawn = replicas.generators.replayed(torch_states)
        with replicas.forwards.at_position(position), redrawn, replicas.replay.replaying(decisions):
            return function(*args, **kwargs)

    return run


_EFFECT = "computes again on the same rows with the same draws; never the reentrant way"

PATCHES = (Patch("torch.utils.checkpoint", "checkpoint", _checkpoint, _EFFECT),)
