"""Batches that a transformed function closes over: constants to the transform, which is not told of them."""

from __future__ import annotations

from typing import Any

from .below_torch import below_torch
from .forms import full_tensor
from .names import function_name, writes_in_place
from .nested import nested
from .tensor import BatchTensor
from .versions import note_write
from .world import World


def on_constants(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function that is transformed on the whole of batches, of which the transform is not told.

    Raises:
        BatchError: where a model is looked at; it may compute rows, and transform these.
    """
    world = World.get()
    if world.observation is not None:
        raise below_torch(function_name(func))
    with world.working_on_whole(func):
        result = func(*nested(full_tensor_of, args), **nested(full_tensor_of, kwargs))
    target = kwargs.get("out", args[0] if args else None)
    if isinstance(target, BatchTensor) and target._whole is not None and writes_in_place(func, kwargs):
        note_write(target._whole)
    return result


def full_tensor_of(value: Any) -> Any:
    """Give the whole of a batch; anything else itself."""
    return full_tensor(value) if isinstance(value, BatchTensor) else value
