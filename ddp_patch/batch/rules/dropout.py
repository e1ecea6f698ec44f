"""Dropout: the mask is drawn whole, from the global generator, as one process would; each rank keeps its rows of it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ..crossings import local_rows
from ..forms import to_local
from ..strides import empty_whole
from ..tensor import BatchTensor, Rule
from .metadata import strides_of

_NAMES = ("input", "p", "training", "inplace")


def dropout(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``F.dropout(x, p)`` and its forms for channels: a product with a scaled mask of zeros and ones."""
    arguments = _arguments(args, kwargs)
    result = unchanged(func, args, kwargs)
    if arguments is None or result is not NotImplemented:
        return result
    batch: BatchTensor = arguments["input"]
    # The kernels draw in the order of memory.
    ones = empty_whole(to_local(batch).detach(), batch._layout, strides_of(batch)).fill_(1)
    mask = func(ones, arguments["p"], True)
    rows = local_rows(mask, batch._layout).clone()  # a backward keeps these alone
    sharded_mask = BatchTensor.from_local(rows, batch._layout)
    return batch.mul_(sharded_mask) if arguments["inplace"] else batch * sharded_mask


def unchanged(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``F.alpha_dropout(x, p, training=False)``: the batch itself. In training its noise is added as well: gathered."""
    arguments = _arguments(args, kwargs)
    return (
        arguments["input"]
        if arguments is not None and (not arguments["training"] or arguments["p"] == 0)
        else NotImplemented
    )


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Name the arguments; None for what torch refuses, or rules do not know."""
    arguments = {"p": 0.5, "training": True, "inplace": False, **dict(zip(_NAMES, args, strict=False)), **kwargs}
    arguments["training"] = arguments.pop("train", arguments["training"])
    batch, p = arguments.get("input"), arguments["p"]
    if not isinstance(batch, BatchTensor) or not batch.is_floating_point() or type(p) not in (int, float):
        return None
    return arguments if 0 <= p <= 1 and set(arguments) <= set(_NAMES) else None


def rules() -> list[tuple[Any, Rule]]:
    """Dropout in torch's two homes."""
    multiplied = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, torch.dropout, torch.feature_dropout)
    shifted = (F.alpha_dropout, F.feature_alpha_dropout, torch.alpha_dropout, torch.feature_alpha_dropout)
    return [*((func, dropout) for func in multiplied), *((func, unchanged) for func in shifted)]
