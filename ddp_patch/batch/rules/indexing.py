"""Picking, cutting and joining. Within rows it is local; across rows the whole is gathered and dealt again."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from ..forms import to_local
from ..layout import Layout
from ..shared_memory import note_view
from ..tensor import BatchTensor, Rule, on_whole
from ..world import World
from . import lookups, masked_rows, picked_rows, sorted_rows
from .cuts import is_all, part_of, parts_of
from .dims import named_dims
from .indices import index_dims, moved_by, of_each_row, scalar, without_ellipsis


def redealt(result: Any, dim: int, source: BatchTensor | None = None, layout: Layout | None = None) -> Any:
    """Deal a whole tensor anew along ``dim``, so that it stays a batch for the next model call.

    Args:
        result: of a function of whole batches.
        dim: where its rows are.
        source: the batch that it may be a view of.
        layout: how it is dealt; None for evenly.
    """
    if not isinstance(result, Tensor) or isinstance(result, BatchTensor) or result.dim() <= dim:
        return result
    layout = layout or Layout.deal(result.shape[dim], dim, World.get().size)
    if layout is None:
        return result
    batch = BatchTensor.from_full(result, layout)
    note_view(batch, [] if source is None else [source])
    return batch


def getitem(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x[:, 0]`` and ``x[arange(B), i]`` are local.

    ``x[permutation]`` and ``x[:n]`` are dealt anew, ``x[mask]`` is dealt as its mask; ``x[i]`` is plain.
    """
    batch, index = args
    items = tuple(map(scalar, index if isinstance(index, tuple) else (index,)))
    if items and masked_rows.is_mask(items[0]) and (by_mask := masked_rows.picked(batch, items)) is not None:
        return by_mask
    if not isinstance(batch, BatchTensor):
        return lookups.at_indices(func, batch, index)
    by_row = _by_row(batch, items)
    if by_row is not None:
        return by_row
    items = masked_rows.spelled_out(items, batch.dim(), batch._layout.dim)
    has_batch = any(isinstance(item, BatchTensor) for item in items)
    if has_batch and (own := picked_rows.picked_by_batch(batch, items)) is not None:
        return own
    expanded = without_ellipsis(items, batch.dim())
    if expanded is None or has_batch:
        return _picked(func, batch, index, items)
    dim, out, at_batch, advanced = 0, 0, slice(None), 0
    out_dim, place = None, 0  # among the items: of that of the batch's dimension
    for at, item in enumerate(expanded):
        if item is None:
            out += 1
            continue
        if dim == batch._layout.dim:
            at_batch, out_dim, place = item, out, at
        elif not isinstance(item, (int, slice)) or isinstance(item, bool):
            advanced += 1
            if index_dims(item) is None:
                return _picked(func, batch, index, items)
        out += 0 if isinstance(item, int) and dim != batch._layout.dim else 1
        dim += 1
    if out_dim is None:
        out_dim = out + batch._layout.dim - dim
    if isinstance(at_batch, slice) and is_all(at_batch, batch._layout.total):
        if advanced:
            out_dim = moved_by(batch, expanded)
        if out_dim is None:
            return _picked(func, batch, index, items)
        return BatchTensor.from_local(to_local(batch)[tuple(expanded)], batch._layout.at(out_dim))
    if isinstance(at_batch, slice) and not advanced:
        cuts = not batch._layout.is_consecutive and at_batch.step in (None, 1)
        part = part_of(batch, *at_batch.indices(batch._layout.total)[:2]) if cuts else None
        if part is not None:
            rest = (*expanded[:place], slice(None), *expanded[place + 1 :])
            return BatchTensor.from_local(to_local(part)[rest], part._layout.at(out_dim))
        return redealt(on_whole(func, args, kwargs), out_dim, batch)
    are_rows = all(item is Ellipsis or (isinstance(item, slice) and item == slice(None)) for item in items[1:])
    found: Tensor | None = sorted_rows.picked(batch, items[0]) if are_rows else None
    if found is None and len(items) > 1:
        found = picked_rows.picked(batch, expanded)
    return _picked(func, batch, index, items) if found is None else found


def _by_row(batch: BatchTensor, items: tuple[Any, ...]) -> BatchTensor | None:
    """``x[torch.arange(B), i]``: an entry of each row, such as the last step of each text."""
    local = of_each_row(batch, items)
    return None if local is None else BatchTensor.from_local(to_local(batch)[local[0]], local[1])


def _picked(func: Any, batch: BatchTensor, index: Any, items: tuple[Any, ...]) -> Any:
    result = on_whole(func, (batch, index), {})
    first = items[0] if len(items) == 1 else None
    rows_picked = isinstance(first, (Tensor, list)) and batch._layout.dim == 0 and index_dims(first) == 1
    return redealt(result, 0, layout=_like(batch, result, 0)) if rows_picked else result


def along_dim(position: int, default: Any, several: bool) -> Rule:
    """Make the rule of ``split``, ``flip``, ...: local along other dimensions, dealt anew along the batch's.

    Args:
        position: where the dimensions stand among the positional arguments.
        default: what an omitted dimension means; None for all of them.
        several: whether the function returns a tuple.
    """

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        batch = args[0] if args else None
        if (
            not isinstance(batch, BatchTensor)
            or "out" in kwargs
            or any(isinstance(value, BatchTensor) for value in (*args[1:], *kwargs.values()))
        ):
            return NotImplemented
        named = {"dim": kwargs["dims"]} if "dims" in kwargs else kwargs
        dims = named_dims(batch, args, named, position, default)
        dim = batch._layout.dim
        if dims is not None and dim not in dims:
            result = func(to_local(batch), *args[1:], **kwargs)
            if several:
                return tuple(BatchTensor.from_local(part, batch._layout) for part in result)
            return BatchTensor.from_local(result, batch._layout)
        if parts := parts_of(func, batch, args[1:], kwargs):
            return parts if several else parts[0]
        result = on_whole(func, args, kwargs)
        if several:
            return tuple(redealt(part, dim, batch) for part in result)
        return redealt(result, dim, batch, _like(batch, result, dim))

    return rule


def _like(batch: BatchTensor, result: Any, dim: int) -> Layout | None:
    """Deal the rows of a batch in another order as it is dealt: they will meet."""
    same = isinstance(result, Tensor) and result.shape[dim : dim + 1] == (batch._layout.total,)
    return batch._layout.at(dim) if same else None


def flip(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.flip(0, 1)`` takes its dimensions loose or as one list."""
    dims = kwargs.get("dims", args[1] if len(args) == 2 else args[1:])
    return along_dim(1, None, False)(torch.flip, (args[0], [dims] if isinstance(dims, int) else list(dims)), {})


def unbind(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.unbind(1)`` gives batches; along the batch dimension it gives plain rows."""
    batch = args[0]
    dims = named_dims(batch, args, kwargs, 1, 0)
    if dims is None or batch._layout.dim in dims:
        return NotImplemented
    layout = batch._layout.at(batch._layout.dim - sum(d < batch._layout.dim for d in dims))
    return tuple(BatchTensor.from_local(part, layout) for part in func(to_local(batch), *args[1:], **kwargs))


def unsafe_cut(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.unsafe_chunk(2)`` shares memory without a version counter: here as views, whose writes are noticed."""
    batch = args[0]
    dims = named_dims(batch, args, kwargs, 2, 0) if isinstance(batch, BatchTensor) else None
    if dims is None or len(dims) != 1:
        return NotImplemented
    (dim,) = dims
    sizes = [piece.shape[dim] for piece in func(torch.empty(batch.shape, device="meta"), *args[1:], **kwargs)]
    starts = itertools.accumulate(sizes, initial=0)
    return tuple(torch.narrow(batch, dim, start, size) for start, size in zip(starts, sizes, strict=False))


def select(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.select(1, 0)`` drops a dimension."""
    if not isinstance(args[0], BatchTensor):
        return NotImplemented
    batch: BatchTensor = args[0]
    dims = named_dims(batch, args, kwargs, 1, None)
    if dims is None or batch._layout.dim in dims:
        return NotImplemented
    layout = batch._layout.at(batch._layout.dim - sum(d < batch._layout.dim for d in dims))
    return BatchTensor.from_local(func(to_local(batch), *args[1:], **kwargs), layout)


def rules() -> list[tuple[Any, Rule]]:
    """Functions that pick and cut, and their rules."""
    split = along_dim(2, 0, True)
    narrow = along_dim(1, None, False)
    return [
        (Tensor.__getitem__, getitem),
        *((f, split) for f in (torch.split, Tensor.split, torch.chunk, Tensor.chunk, torch.tensor_split)),
        *((f, split) for f in (Tensor.tensor_split, Tensor.split_with_sizes, torch.split_with_sizes)),
        *((f, unsafe_cut) for f in (torch.unsafe_chunk, Tensor.unsafe_chunk, torch.unsafe_split, Tensor.unsafe_split)),
        *((f, unsafe_cut) for f in (torch.unsafe_split_with_sizes, Tensor.unsafe_split_with_sizes)),
        *((f, flip) for f in (torch.flip, Tensor.flip)),
        *((f, along_dim(2, None, False)) for f in (torch.roll, Tensor.roll)),
        *((f, narrow) for f in (torch.narrow, Tensor.narrow)),
        *((f, unbind) for f in (torch.unbind, Tensor.unbind)),
        *((f, select) for f in (torch.select, Tensor.select)),
    ]
