"""Reductions that cross the rows: a local reduction and one small all-reduce."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..crossings import all_reduce
from ..forms import full_tensor_if_gathered, to_local
from ..nodes import named
from ..observation import is_asserted
from ..pending_tensor import PendingTensor, pending_reduction, wait_for
from ..tensor import BatchTensor, Rule
from ..transforms import is_wrapped
from ..world import World
from .dims import along, named_dims
from .elementwise import broadcast_dims, common_layout, cutter

_SIMPLE = {"dim", "axis", "keepdim", "keepdims", "dtype"}


def over(name: str) -> Rule:
    """Make the rule of ``sum`` or ``mean``."""
    local = along(name, 1, None)

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = local(func, args, kwargs)
        if result is not NotImplemented or not isinstance(args[0], BatchTensor):
            return result
        batch: BatchTensor = args[0]
        whole = len(args) == 1 and kwargs.get("dim", kwargs.get("axis")) is None
        dims = named_dims(batch, args, kwargs, 1, None)
        if not (whole or dims) or not set(kwargs) <= _SIMPLE:
            return NotImplemented
        rows = to_local(batch)
        dtype = kwargs.get("dtype") or rows.dtype
        is_mean = name == "mean"
        if not is_mean and "dtype" not in kwargs and _sums_in_float(rows):
            dtype = torch.float32
        if not (dtype.is_floating_point or dtype.is_complex):
            if is_mean:
                return NotImplemented  # torch's own error
            partial = func(rows, *args[1:], **kwargs)
            return all_reduce(partial) if partial.dim() else pending_reduction(partial, 1, rows=rows)
        # Sum, then divide, as torch's kernel does: a mean of 0s and 1s stays exact. Half precision adds up in float.
        wide = torch.float32 if dtype.itemsize < 4 else dtype
        reduced = 1 if not is_mean else _entries(batch) if whole else math.prod(batch.shape[dim] for dim in dims or ())
        # torch's mean into half precision has the entries in float on the CPU (torch 2.13, ReduceOps.cpp).
        kind = wide if is_mean and rows.device.type == "cpu" else dtype
        entries = rows if rows.dtype == kind else rows.to(kind)
        partial = torch.sum(entries, *args[1:], **{**kwargs, "dtype": wide})
        if partial.dim():
            return all_reduce(partial, reduced, dtype)
        return pending_reduction(partial, reduced, rows=rows, dtype=dtype)

    return rule


def variance(name: str) -> Rule:
    """Make the rule of ``var``, ``std``, ``var_mean`` or ``std_mean``: a mean, and squared distances from it."""
    local = along(name, 1, None)
    node = "".join(word.capitalize() for word in name.split("_")) + "Backward0"

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = local(func, args, kwargs)
        if result is not NotImplemented or not isinstance(args[0], BatchTensor):
            return result
        batch: Any = args[0]
        how = _of_variance(batch, args[1:], kwargs)
        if how is None or not batch.is_floating_point():
            return NotImplemented
        dims, correction, keepdim = how
        freedom = math.prod(batch.shape[dim] for dim in dims) - correction
        if freedom <= 0:
            return NotImplemented  # torch's own warning, and what it gives
        wide = batch if batch.dtype.itemsize >= 4 else batch.float()
        mean = wide.mean(dims, keepdim=True)
        spread = (wide - mean).square().sum(dims, keepdim=keepdim) / freedom
        if name.startswith("std"):
            is_zero = spread == 0  # where torch's gradient is 0, and that of the root infinite
            spread = torch.where(is_zero, 0.0, torch.where(is_zero, 1.0, spread).sqrt())
        spread = _called(spread.to(batch.dtype), node)
        if not name.endswith("_mean"):
            return spread
        return spread, _called((mean if keepdim else mean.squeeze(dims)).to(batch.dtype), node)

    return rule


class _Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.clone()  # a view would not take what is written to it

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def _called(result: Tensor, node: str) -> Tensor:
    """Give a result whose node has the name of one process's, for a script that prints it."""
    if World.get().observation is not None or is_wrapped(result):
        return result
    if isinstance(result, PendingTensor):
        wait_for(result)
    return named(_Same, node)(result) if type(result) is Tensor and result.requires_grad else result


def _of_variance(batch: BatchTensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, float, bool] | None:
    """Dimensions, correction and ``keepdim`` of a call; None for a form that is not clear."""
    given = {"dim": kwargs.get("axis")} | {name: value for name, value in kwargs.items() if name != "axis"}
    if not set(given) <= {"dim", "unbiased", "correction", "keepdim"}:
        return None
    names = ("unbiased",) if args and isinstance(args[0], bool) else ("dim", "unbiased", "keepdim")
    if len(args) > len(names):
        return None
    given |= dict(zip(names, args, strict=False))
    dims = named_dims(batch, (batch,), {"dim": given["dim"]}, 1, None)
    if dims is None and given["dim"] is not None:
        return None
    correction = given.get("correction")
    correction = (1 if given.get("unbiased", True) else 0) if correction is None else correction
    every = tuple(range(batch.dim())) if dims is None else tuple(sorted(dims))
    return every, correction, bool(given.get("keepdim", False))


def _entries(batch: BatchTensor) -> int:
    if World.get().observation is not None:
        return batch.numel()  # which is noted
    with torch._C.DisableTorchFunctionSubclass():
        return batch.numel()


def _sums_in_float(rows: Tensor) -> bool:
    """Tell whether autocast has a sum of half precision in float: on accelerators (torch 2.13, autocast_mode.h)."""
    kind = rows.device.type
    return (
        kind != "cpu" and rows.dtype.is_floating_point and rows.dtype.itemsize < 4 and torch.is_autocast_enabled(kind)
    )


def of_all(name: str) -> Rule:
    """Make the rule of ``any`` or ``max``: of all entries, it is that of the ranks' values. One all_reduce."""
    local = along(name, 1, None)

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        batch = args[0] if len(args) == 1 and not kwargs else None
        if not isinstance(batch, BatchTensor) or batch.requires_grad or full_tensor_if_gathered(batch) is not None:
            return local(func, args, kwargs)  # of equal entries, each has a part in the gradient
        rows = to_local(batch)
        if min(batch._layout.counts) == 0 or rows.numel() == 0 or rows.is_complex():
            return NotImplemented
        values = of_ranks(func(rows))
        return values.sum() if name == "count_nonzero" else func(values)

    return rule


def all_true(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch._is_all_true``, by which ``torch.distributions`` checks arguments: on rows, each rank checks its own."""
    seen = World.get().observation
    if seen is None or not isinstance(args[0], BatchTensor) or not is_asserted():
        return _of_all_true(func, args, kwargs)
    with seen.paused():
        return func(of_ranks(func(to_local(args[0]))))


def compare(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.equal`` and ``allclose``: true where every rank's rows are. One all_reduce."""
    pair = args[:2]
    if len(pair) < 2 or not all(isinstance(value, Tensor) for value in pair):
        return NotImplemented
    layout = common_layout([*pair])
    has_wholes = all(not isinstance(value, BatchTensor) or full_tensor_if_gathered(value) is not None for value in pair)
    if layout is None or has_wholes or (pair[0].shape != pair[1].shape and func in _OF_ONE_SHAPE):
        return NotImplemented
    left, right = map(cutter(layout, broadcast_dims([*pair])), pair)
    local = func(left, right, *args[2:], **kwargs)
    return bool(of_ranks(torch.tensor(local, device=left.device)).all())


_of_all_true = of_all("_is_all_true")
_OF_ONE_SHAPE = (torch.equal, Tensor.equal)


def of_ranks(value: torch.Tensor) -> torch.Tensor:
    """Give every rank's small tensor ``[N, *shape]``. Its bits are summed, which keeps NaN and the sign of a zero."""
    world = World.get()
    slots = torch.zeros(world.size, *value.shape, dtype=torch.int64, device=value.device)
    if not value.is_floating_point():
        slots[world.rank] = value
        return world.all_reduce(slots).to(value.dtype)
    wide, bits = (torch.float64, torch.int64) if value.dtype == torch.float64 else (torch.float32, torch.int32)
    slots[world.rank] = value.to(wide).view(bits)
    return world.all_reduce(slots).to(bits).view(wide).to(value.dtype)
