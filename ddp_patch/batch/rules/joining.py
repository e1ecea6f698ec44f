"""Rules for functions that join tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..crossings import shard
from ..forms import full_tensor_if_gathered, to_local
from ..layout import Layout
from ..tensor import BatchTensor, Rule, on_whole
from ..world import World
from .elementwise import common_layout
from .indexing import redealt


def cat(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.cat`` is local: along the batch, each rank joins what it has of every batch."""
    tensors: Any = args[0] if args else kwargs["tensors"]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", 0))
    if kwargs.get("out") is not None or type(dim) is not int or not tensors:
        return NotImplemented
    # As torch has it, which caches of keys and values begin with: empty ones of one dimension are passed over.
    tensors = [tensor for tensor in tensors if isinstance(tensor, BatchTensor) or tensor.shape != (0,)]
    if len({tensor.dim() for tensor in tensors}) != 1:
        return NotImplemented
    layout = common_layout(list(tensors))
    if layout is not None and dim % tensors[0].dim() != layout.dim:
        rows = _cut(tensors, layout)
        return NotImplemented if rows is None else BatchTensor.from_local(torch.cat(rows, dim), layout)
    batches = [tensor for tensor in tensors if isinstance(tensor, BatchTensor)]
    dim %= tensors[0].dim()
    if all(batch._layout.dim == dim for batch in batches):
        return _joined(func, list(tensors), batches, dim)
    if len({batch._layout.total for batch in batches}) == 1:
        return NotImplemented  # may be dealt in several ways
    return redealt(on_whole(func, args, kwargs), dim if dim in (at := [b._layout.dim for b in batches]) else at[0])


def _joined(func: Any, tensors: list[Tensor], batches: list[BatchTensor], dim: int) -> Any:
    """Join batches along their rows, and what every rank has whole, as the few rows of a last batch are."""
    world = World.get()
    layouts = [
        tensor._layout if isinstance(tensor, BatchTensor) else Layout.evenly(tensor.shape[dim], dim, world.size)
        for tensor in tensors
    ]
    layout = Layout.joined([its for its in layouts if its.total], dim)
    if world.observation is not None:
        world.observation.is_size_dependent = True  # what was joined may be cut again where it was
    if layout.total > 2 * sum(batch._layout.total for batch in batches if full_tensor_if_gathered(batch) is None):
        # Nothing is gathered, or a batch is put in a queue, which is cut to its length.
        return redealt(on_whole(func, (tensors, dim), {}), dim, layout=layout)
    pairs = zip(tensors, layouts, strict=True)
    return BatchTensor.from_local(func([_to_local_or_shard(tensor, its) for tensor, its in pairs], dim), layout)


def _to_local_or_shard(tensor: Tensor, layout: Layout) -> Tensor:
    return to_local(tensor) if isinstance(tensor, BatchTensor) else shard(tensor, layout)


def vstack(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.vstack`` of what has rows already is ``torch.cat``."""
    tensors: Any = args[0] if args else kwargs.get("tensors")
    if kwargs.get("out") is not None or not tensors or any(tensor.dim() < 2 for tensor in tensors):
        return NotImplemented
    return cat(torch.cat, (tensors, 0), {})


def repeat(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.repeat(2, 1)`` and ``x.tile(2, 1)``: the batch end to end with itself."""
    batch, sizes = args[0] if args else None, args[1:]
    if len(sizes) == 1 and isinstance(sizes[0], (list, tuple)):
        sizes = tuple(sizes[0])
    if kwargs or not isinstance(batch, BatchTensor) or not all(type(size) is int and size > 0 for size in sizes):
        return NotImplemented
    if len(sizes) < batch.dim():
        if func is Tensor.repeat:
            return NotImplemented  # torch refuses it
        sizes = (1,) * (batch.dim() - len(sizes)) + sizes
    at = batch._layout.dim + len(sizes) - batch.dim()
    layout = batch._layout.at(at)
    if sizes[at] > 1:
        layout = layout.repeated(sizes[at], at)
        if (seen := World.get().observation) is not None:
            seen.is_size_dependent = True
    return BatchTensor.from_local(func(to_local(batch), sizes), layout)


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
    return [
        *((f, cat) for f in (torch.cat, torch.concat, torch.concatenate)),
        *((f, vstack) for f in (torch.vstack, torch.row_stack)),
        (torch.stack, stack),
        *((f, repeat) for f in (Tensor.repeat, torch.tile, Tensor.tile)),
    ]
