"""Rules for functions that join tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..crossings import shard
from ..forms import to_local
from ..layout import Layout
from ..tensor import BatchTensor, Rule, on_whole
from .elementwise import common_layout
from .indexing import redealt


def cat(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.cat`` along the batch is dealt anew; along another dimension it is local."""
    tensors: Any = args[0] if args else kwargs["tensors"]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", 0))
    if kwargs.get("out") is not None or type(dim) is not int or not tensors:
        return NotImplemented
    if len({tensor.dim() for tensor in tensors}) != 1:
        return NotImplemented
    layout = common_layout(list(tensors))
    if layout is not None and dim % tensors[0].dim() != layout.dim:
        rows = _cut(tensors, layout)
        return NotImplemented if rows is None else BatchTensor.from_local(torch.cat(rows, dim), layout)
    at = [tensor._layout.dim for tensor in tensors if isinstance(tensor, BatchTensor)]
    dim %= tensors[0].dim()
    return redealt(on_whole(func, args, kwargs), dim if dim in at else at[0])


def stack(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.stack`` adds a dimension; batches of one size stay batches."""
    tensors: Any = args[0] if args else kwargs["tensors"]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    if kwargs.get("out") is not None or type(dim) is not int or len({tuple(t.shape) for t in tensors}) != 1:
        return NotImplemented
    layout = common_layout(list(tensors))
    rows = layout and _cut(tensors, layout)
    if not layout or not rows:
        return NotImplemented
    at = dim % (tensors[0].dim() + 1)
    return BatchTensor.from_local(torch.stack(rows, at), layout.at(layout.dim + (at <= layout.dim)))


def _cut(tensors: Any, layout: Layout) -> list[Tensor] | None:
    rows = []
    for tensor in tensors:
        if isinstance(tensor, BatchTensor):
            rows.append(to_local(tensor))
        elif tensor.shape[layout.dim] == layout.total:
            rows.append(shard(tensor, layout))
        else:
            return None
    return rows


def rules() -> list[tuple[Any, Rule]]:
    """Functions that join, and their rules."""
    return [*((f, cat) for f in (torch.cat, torch.concat, torch.concatenate)), (torch.stack, stack)]
