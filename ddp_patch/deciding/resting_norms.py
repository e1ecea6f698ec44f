"""Norms while a forward is tried: with running statistics, as the real ones see the rows of all ranks.

The function rests, and not the layer, which says that it trains: the author's code around it may ask.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from ..batch.nodes import unheard

_entries: Any = unheard(Tensor.numel)  # asked by us, not by the forward
_RUNNING, _OF_INPUT = 1, 5  # where they stand (torch 2.13)
_NAMES = {"batch_norm": "training", "instance_norm": "use_input_stats"}


class Resting(NamedTuple):
    """A call of a norm that takes what it has tracked."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    entries: int  # that it was given for each channel


def at_rest(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Resting | None:
    """Give the arguments with which a norm that tracks its batches rests; None if a function does not track them.

    Args:
        func: of torch.
        args: for it.
        kwargs: likewise.
    """
    name = _NAMES.get(getattr(func, "__name__", ""))
    if name is None or func.__module__ != "torch.nn.functional":
        return None
    if (args[_RUNNING] if len(args) > _RUNNING else kwargs.get("running_mean")) is None:
        return None
    by_position = len(args) > _OF_INPUT
    if not (args[_OF_INPUT] if by_position else kwargs.get(name, name != "training")):
        return None
    given = args[0] if args else kwargs["input"]
    entries = _entries(given) // max(1, given.shape[1])
    if by_position:
        return Resting((*args[:_OF_INPUT], False, *args[_OF_INPUT + 1 :]), kwargs, entries)
    return Resting(args, {**kwargs, name: False}, entries)
