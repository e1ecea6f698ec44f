"""Functions that move the batch dimension about. It may merge with the dimensions after it, and come apart again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..crossings import replicate
from ..forms import to_local
from ..layout import Layout
from ..tensor import BatchTensor, Rule, on_whole
from ..world import World
from .copies import contiguous, copied, is_view, reshaped_copy
from .elementwise import broadcast_dims, common_layout, cutter
from .reshaped_rows import follow, resolve


def reshaped(func: Any, batch: BatchTensor, sizes: Sequence[Any]) -> Any:
    """Run ``view`` or ``reshape`` on the rows."""
    new_shape = resolve(batch.numel(), sizes)
    if not new_shape:
        return NotImplemented
    layout = follow(batch.shape, batch._layout, new_shape)
    copies = func is not Tensor.view and not is_view(batch, new_shape)
    if not layout:
        return on_whole(func, (copied(batch), new_shape), {}) if copies else NotImplemented
    if layout.total < batch._layout.total and (seen := World.get().observation) is not None:
        seen.is_size_dependent = True  # several rows become one: with another number of rows, some of two ranks may
    local_shape = list(new_shape)
    local_shape[layout.dim] = local_count(batch, layout)
    return BatchTensor.from_local((reshaped_copy if copies else func)(to_local(batch), local_shape), layout)


def local_count(batch: BatchTensor, layout: Layout) -> int:
    """Rows of this rank in another layout of the same batch."""
    return to_local(batch).shape[batch._layout.dim] * layout.total // batch._layout.total


def view(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.view(B, -1)``, ``x.reshape((B, -1))``, ``torch.reshape(x, shape)``."""
    if kwargs or len(args) < 2 or not isinstance(args[0], BatchTensor):
        return NotImplemented
    sizes = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
    method = Tensor.view if func is Tensor.view else Tensor.reshape
    return reshaped(method, args[0], sizes)


def view_as(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.view_as(y)`` needs only y's shape."""
    shape = (args[1] if len(args) > 1 else kwargs["other"]).shape
    if not isinstance(args[0], BatchTensor):
        return func(args[0], torch.empty(shape, device="meta")) if func is Tensor.view_as else NotImplemented
    return reshaped(Tensor.view if func is Tensor.view_as else Tensor.reshape, args[0], tuple(shape))


def flatten(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.flatten(1)``: a reshape."""
    batch = args[0]
    start = args[1] if len(args) > 1 else kwargs.get("start_dim", 0)
    end = args[2] if len(args) > 2 else kwargs.get("end_dim", -1)
    if not isinstance(batch, BatchTensor) or not (type(start) is int and type(end) is int) or batch.dim() < 2:
        return NotImplemented
    start, end = start % batch.dim(), end % batch.dim()
    if start > end:
        return NotImplemented
    shape = list(batch.shape)
    return reshaped(Tensor.reshape, batch, [*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :]])


def ravel(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.ravel()``: a view of a contiguous batch."""
    batch = args[0]
    if not isinstance(batch, BatchTensor) or batch.dim() < 2:
        return NotImplemented
    return reshaped(Tensor.view, contiguous(Tensor.contiguous, (batch,), {}), [-1])


def unflatten(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.unflatten(0, (B, T))``: a reshape."""
    if kwargs or len(args) != 3 or not isinstance(args[0], BatchTensor) or type(args[1]) is not int:
        return NotImplemented
    batch, dim, sizes = args
    dim %= batch.dim()
    inner = resolve(batch.shape[dim], tuple(sizes))
    if inner is None:
        return NotImplemented
    return reshaped(Tensor.reshape, batch, [*batch.shape[:dim], *inner, *batch.shape[dim + 1 :]])


def squeeze(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Drop dimensions of global size 1; a rank with one row keeps its batch dimension."""
    batch = args[0]
    dims = args[1] if len(args) > 1 else kwargs.get("dim", tuple(range(batch.dim())))
    dims = [dims] if isinstance(dims, int) else dims
    if not isinstance(batch, BatchTensor) or not isinstance(dims, (list, tuple)):
        return NotImplemented
    if not all(type(d) is int and -batch.dim() <= d < batch.dim() for d in dims):
        return NotImplemented
    gone = tuple(sorted({d % batch.dim() for d in dims if batch.shape[d] == 1}))
    layout = batch._layout.at(batch._layout.dim - sum(d < batch._layout.dim for d in gone))
    return BatchTensor.from_local(Tensor.squeeze(to_local(batch), gone), layout)


def unsqueeze(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.unsqueeze(0)`` moves the batch dimension up."""
    batch = args[0]
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    if not isinstance(batch, BatchTensor) or type(dim) is not int or not -batch.dim() - 1 <= dim <= batch.dim():
        return NotImplemented
    at = dim % (batch.dim() + 1)
    layout = batch._layout.at(batch._layout.dim + (at <= batch._layout.dim))
    return BatchTensor.from_local(func(to_local(batch), at), layout)


def transpose(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.transpose(0, 1)``, ``x.t()``, ``x.T``, ``x.mT``: the batch dimension moves."""
    batch = args[0]
    if not isinstance(batch, BatchTensor) or kwargs:
        return NotImplemented
    return moved(func, batch, args[1:])


def permute(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.permute(1, 0, 2)`` and ``x.movedim(0, 1)``."""
    batch = args[0]
    if not isinstance(batch, BatchTensor):
        return NotImplemented
    return moved(func, batch, args[1:], kwargs)


def moved(func: Any, batch: BatchTensor, rest: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
    """Run a function that only reorders dimensions, and see on a probe where the batch dimension went."""
    probe = torch.empty([1 + (d == batch._layout.dim) for d in range(batch.dim())], device="meta")
    dim = list(func(probe, *rest, **(kwargs or {})).shape).index(2)
    return BatchTensor.from_local(func(to_local(batch), *rest, **(kwargs or {})), batch._layout.at(dim))


def expand(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.expand(B, -1, T)``: the batch dimension keeps its size."""
    if kwargs or len(args) < 2 or not isinstance(args[0], BatchTensor):
        return NotImplemented
    batch: BatchTensor = args[0]
    sizes = list(args[1]) if len(args) == 2 and isinstance(args[1], (list, tuple)) else list(args[1:])
    at = batch._layout.dim + len(sizes) - batch.dim()
    if at < batch._layout.dim or sizes[at] not in (-1, batch._layout.total):
        return NotImplemented
    sizes[at] = -1
    return BatchTensor.from_local(to_local(batch).expand(*sizes), batch._layout.at(at))


def expand_as(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.expand_as(y)`` needs only y's shape; of one row of numbers, as positions are, a forward's rows are made."""
    if len(args) != 2:
        return NotImplemented  # other=y
    if not isinstance(args[0], BatchTensor):
        one, other = args
        back, whole = other.dim() - other._layout.dim, one.expand(other.shape)
        in_forward = World.get().tells_batch_sizes or World.get().observation is not None
        if not in_forward or one.is_floating_point() or (one.dim() >= back and one.shape[-back] != 1):
            return whole  # what is written to it may be seen elsewhere
        shape = [*other.shape]
        shape[-back] = other._layout.counts[World.get().rank]
        return BatchTensor.from_local(replicate(one).expand(shape), other._layout)
    return expand(Tensor.expand, (args[0], *args[1].shape), {})


def broadcast_tensors(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.broadcast_tensors(x, scale)``: all of them get rows."""
    tensors = list(args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args)
    layout = common_layout(tensors) if all(isinstance(tensor, Tensor) for tensor in tensors) else None
    if layout is None or kwargs:
        return NotImplemented
    local = func(*map(cutter(layout, broadcast_dims(tensors)), tensors))
    return type(local)([BatchTensor.from_local(rows, layout) for rows in local])


def rules() -> list[tuple[Any, Rule]]:
    """Functions of shapes and their rules."""
    properties = [
        (getattr(Tensor, name).__get__, _property(name)) for name in ("T", "mT", "H", "mH") if hasattr(Tensor, name)
    ]
    same = {
        view: (Tensor.view, Tensor.reshape, torch.reshape),
        view_as: (Tensor.view_as, Tensor.reshape_as),
        flatten: (torch.flatten, Tensor.flatten),
        ravel: (torch.ravel, Tensor.ravel),
        unflatten: (torch.unflatten, Tensor.unflatten),
        squeeze: (torch.squeeze, Tensor.squeeze),
        unsqueeze: (torch.unsqueeze, Tensor.unsqueeze),
        transpose: (
            torch.transpose, Tensor.transpose, torch.swapaxes, Tensor.swapaxes, torch.swapdims, Tensor.swapdims,
            torch.t, Tensor.t, torch.adjoint, Tensor.adjoint,
        ),
        permute: (torch.permute, Tensor.permute, torch.movedim, Tensor.movedim, torch.moveaxis, Tensor.moveaxis),
        expand: (Tensor.expand, torch.broadcast_to, Tensor.broadcast_to),
        expand_as: (Tensor.expand_as,),
        broadcast_tensors: (torch.broadcast_tensors,),
    }  # fmt: skip
    return [*properties, *((func, rule) for rule, funcs in same.items() for func in funcs)]


def _property(name: str) -> Rule:
    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return moved(lambda tensor: getattr(tensor, name), args[0], ())

    return rule
