"""Norms while a forward is tried: with running statistics, as the real ones see the rows of all ranks.

The function rests, and not the layer, which says that it trains: the author's code around it may ask.
"""

from __future__ import annotations

from typing import Any

_RUNNING, _OF_INPUT = 1, 5  # where they stand (torch 2.13)
_NAMES = {"batch_norm": "training", "instance_norm": "use_input_stats"}


def at_rest(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Give the arguments with which a norm that tracks its batches takes what it has tracked; others as they are.

    Args:
        func: of torch.
        args: for it.
        kwargs: likewise.
    """
    name = _NAMES.get(getattr(func, "__name__", ""))
    if name is None or func.__module__ != "torch.nn.functional":
        return args, kwargs
    if (args[_RUNNING] if len(args) > _RUNNING else kwargs.get("running_mean")) is None:
        return args, kwargs
    if len(args) > _OF_INPUT:
        return (*args[:_OF_INPUT], False, *args[_OF_INPUT + 1 :]), kwargs
    return args, {**kwargs, name: False}
