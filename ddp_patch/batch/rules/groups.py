"""Rows in groups: how many there are of each, and products of each group with a matrix of its own."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..crossings import all_reduce, replicate
from ..forms import full_tensor_if_gathered, to_local
from ..tensor import BatchTensor, Rule
from ..world import World

_NAMES = {"self": "mat_a", "mat2": "mat_b"}  # of torch._grouped_mm


def histc(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.histc(experts.float(), bins=8, min=0, max=7)``: the ranks' histograms add up, if their ends are given."""
    given = dict(zip(("input", "bins", "min", "max"), args, strict=False)) | kwargs
    batch, low, high = given.get("input"), given.get("min", 0), given.get("max", 0)
    if not isinstance(batch, BatchTensor) or given.get("out") is not None:
        return NotImplemented
    if not all(type(end) in (int, float) for end in (low, high)) or low == high:
        return NotImplemented  # the ends are those of the values
    return all_reduce(
        func(to_local(batch), *args[1:], **{name: its for name, its in kwargs.items() if name != "input"})
    )


def bincount(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.bincount(experts, minlength=8)``: the ranks' counts add up, once they have one length."""
    given = dict(zip(("input", "weights", "minlength"), args, strict=False)) | kwargs
    batch, length = given.get("input"), given.get("minlength", 0)
    if (
        not isinstance(batch, BatchTensor)
        or batch.dim() != 1
        or given.get("weights") is not None
        or type(length) is not int
    ):
        return NotImplemented
    rows, world = to_local(batch), World.get()
    if full_tensor_if_gathered(batch) is not None or world.skips_collectives:
        return NotImplemented
    is_counted = not rows.is_floating_point() and not bool((rows < 0).any())
    counts = func(rows, minlength=length) if is_counted else rows.new_zeros(0)
    told = world.all_gather(torch.tensor(len(counts) if is_counted else -1, device=rows.device))
    longest = int(told.max())
    if int(told.min()) < 0:
        return NotImplemented  # torch says what is wrong, on every rank
    return world.all_reduce(F.pad(counts, (0, longest - len(counts))))


def grouped_mm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``F.grouped_mm(x, weights, offs=ends)``: of each group, a rank has the rows that are its own."""
    given: dict[str, Any] = dict(zip(("mat_a", "mat_b", "offs", "bias", "out_dtype"), args, strict=False))
    given |= {_NAMES.get(name, name): value for name, value in kwargs.items()}
    batch, weights, ends = (given.get(name) for name in ("mat_a", "mat_b", "offs"))
    if not isinstance(batch, BatchTensor) or batch.dim() != 2 or batch._layout.dim != 0:
        return NotImplemented
    if not isinstance(weights, Tensor) or not isinstance(ends, Tensor) or given.get("bias") is not None:
        return NotImplemented
    if isinstance(weights, BatchTensor) or isinstance(ends, BatchTensor) or (weights.dim(), ends.dim()) != (3, 1):
        return NotImplemented
    numbers = batch._layout.rows(World.get().rank).numbers(ends.device)
    own = torch.searchsorted(numbers.contiguous(), ends.long()).to(ends.dtype)  # how many come before each group's end
    rows = to_local(batch).contiguous()  # or its strides are those of this rank's number of rows
    result = func(rows, replicate(weights), offs=own, out_dtype=given.get("out_dtype"))
    return BatchTensor.from_local(result, batch._layout)


def rules() -> list[tuple[Any, Rule]]:
    """Functions of groups."""
    grouped = [func for func in (getattr(F, "grouped_mm", None), getattr(torch, "_grouped_mm", None)) if func]
    return [
        *((func, histc) for func in (torch.histc, Tensor.histc)),
        *((func, bincount) for func in (torch.bincount, Tensor.bincount)),
        *((func, grouped_mm) for func in grouped),
    ]
