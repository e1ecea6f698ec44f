"""Functions that keep elements apart: run on the rows, with every other operand cut to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..crossings import replicate, shard
from ..forms import forget_whole, is_whole_shared, to_local
from ..layout import Layout
from ..names import Unanswered
from ..tensor import BatchTensor
from .copies import copied, keeps_memory


def out_of_place(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``f(x, y, ...)`` with broadcasting against scalars, global tensors and other batches."""
    if kwargs.get("out") is not None or (kwargs.get("inplace") and is_whole_shared(args[0])):
        return NotImplemented
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    layout = common_layout(tensors)
    if layout is None:
        return NotImplemented
    cut = to_local_form if len(tensors) == 1 else cutter(layout, broadcast_dims(tensors))
    result = func(*map(cut, args), **{name: cut(value) for name, value in kwargs.items()})
    if result is NotImplemented:
        raise Unanswered
    first = args[0] if args else None
    if isinstance(first, BatchTensor) and result is first._rows:  # F.relu(x, inplace=True), x.positive()
        forget_whole(first)
        return first
    return BatchTensor.from_local(result, layout)


def in_place(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.f_(y, ...)``: writes this rank's rows, which changes what the script sees."""
    first = args[0] if args else kwargs.get("input")
    if not isinstance(first, BatchTensor) or is_whole_shared(first):
        return NotImplemented
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    layout = common_layout(tensors)
    if layout != first._layout or broadcast_dims(tensors) != first.dim():
        return NotImplemented
    cut = cutter(layout, first.dim())
    result = func(*map(cut, args), **{name: cut(value) for name, value in kwargs.items()})
    if result is NotImplemented:
        raise Unanswered
    forget_whole(first)
    return first


def cast(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.to(...)`` and its kin: another dtype or device for the same rows."""
    first = args[0]
    if not isinstance(first, BatchTensor):
        # plain.to(batch): only the batch's dtype and device matter.
        return func(*map(to_local_form, args), **{name: to_local_form(value) for name, value in kwargs.items()})
    rows = to_local(first)
    result = func(rows, *map(to_local_form, args[1:]), **{name: to_local_form(value) for name, value in kwargs.items()})
    order = kwargs.get("memory_format", torch.preserve_format)
    stays = order is torch.preserve_format or keeps_memory(Tensor.to, first, order)  # asked on every rank
    if result is rows:
        return first if stays else copied(first, order)
    return BatchTensor.from_local(result, first._layout) if isinstance(result, Tensor) else result


def common_layout(tensors: list[Tensor]) -> Layout | None:
    """Give the layout of the broadcast result, or None if the operands' rows do not lie side by side."""
    batches = [tensor for tensor in tensors if isinstance(tensor, BatchTensor)]
    layout = batches[0]._layout
    if len(tensors) == 1:
        return layout
    with torch._C.DisableTorchFunctionSubclass():  # a batch carries the global shape
        back, total = batches[0].dim() - layout.dim, layout.total
        for batch in batches[1:]:
            if not batch._layout.lies_as(layout) or batch.dim() - batch._layout.dim != back:
                return None
        for tensor in tensors:
            if tensor.dim() >= back and tensor.shape[-back] not in (1, total):
                return None
    return layout.at(broadcast_dims(tensors) - back)


def broadcast_dims(tensors: list[Tensor]) -> int:
    """Number of dimensions of the broadcast result."""
    with torch._C.DisableTorchFunctionSubclass():
        return max(map(Tensor.dim, tensors))


def cutter(layout: Layout, dims: int) -> Callable[[Any], Any]:
    """Cut operands to this rank's rows, aligned from the right as broadcasting does."""
    back = dims - layout.dim

    def cut(value: Any) -> Any:
        if isinstance(value, BatchTensor):
            return to_local(value)
        if not isinstance(value, Tensor):
            return value
        if value.dim() >= back and value.shape[-back] == layout.total:
            return shard(value, layout.at(value.dim() - back))
        return replicate(value)

    return cut


def to_local_form(value: Any) -> Any:
    """A batch's rows; anything else as it is."""
    return to_local(value) if isinstance(value, BatchTensor) else value
