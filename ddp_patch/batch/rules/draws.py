"""Random numbers that are written into a batch or drawn by its values: those of one process, which draws in one order.

They tie no rows together: a forward that draws them may run on rows, where each rank draws for its own.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from ..crossings import local_rows
from ..forms import full_tensor, is_whole_shared, to_local
from ..tensor import BatchTensor, Rule
from ..world import World
from .elementwise import common_layout

_IN_PLACE = ["normal_", "uniform_", "bernoulli_", "exponential_", "geometric_", "cauchy_", "log_normal_", "random_"]
_BY_VALUE = ["bernoulli", "normal", "poisson", "binomial", "_standard_gamma"]


def in_place(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.normal_(mean, std)``: drawn whole, in the order of memory; each rank keeps its rows of it."""
    batch, others = args[0], (*args[1:], *kwargs.values())
    if not isinstance(batch, BatchTensor) or any(isinstance(value, Tensor) for value in others):
        return NotImplemented
    if is_whole_shared(batch):
        return NotImplemented
    # Kernels draw otherwise where memory has holes.
    drawn = to_local(batch).detach().new_empty_strided(batch.shape, batch.stride())
    func(drawn, *args[1:], **kwargs)
    return batch.copy_(BatchTensor.from_local(local_rows(drawn, batch._layout), batch._layout))


def by_value(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.bernoulli(p)``: of the gathered batch."""
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    layout = None if kwargs.get("out") is not None else common_layout(tensors)
    if layout is None:
        return NotImplemented
    with _paused():
        made = func(*map(_whole, args), **{name: _whole(value) for name, value in kwargs.items()})
    return BatchTensor.from_full(made, layout)


def multinomial(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.multinomial(p, n)`` of a matrix: some columns of each row."""
    batch = args[0] if args else None
    if not isinstance(batch, BatchTensor) or batch.dim() != 2 or batch._layout.dim != 0 or "out" in kwargs:
        return NotImplemented
    with _paused():
        return BatchTensor.from_full(func(_whole(batch), *args[1:], **kwargs), batch._layout)


def _paused() -> Any:
    seen = World.get().observation
    return nullcontext() if seen is None else seen.paused()


def _whole(value: Any) -> Any:
    return full_tensor(value) if isinstance(value, BatchTensor) else value


def rules() -> list[tuple[Any, Rule]]:
    """Draws and their rules."""
    owned = [(owner, name) for name in _BY_VALUE for owner in (torch, Tensor) if callable(getattr(owner, name, None))]
    return [
        *((getattr(Tensor, name), in_place) for name in _IN_PLACE),
        *((getattr(owner, name), by_value) for owner, name in owned),
        (torch.multinomial, multinomial),
        (Tensor.multinomial, multinomial),
    ]
