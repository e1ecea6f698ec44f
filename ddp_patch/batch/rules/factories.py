"""New tensors shaped like a batch. Random ones are drawn whole, from the global generator, as one process would."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...structure import leaves
from ..factories import is_sizes
from ..forms import to_local
from ..strides import empty_whole, is_contiguous
from ..tensor import BatchTensor, Rule
from ..world import World

_CONSTANT = (torch.zeros_like, torch.ones_like, torch.full_like, torch.empty_like)
_RANDOM = (torch.rand_like, torch.randn_like, torch.randint_like)
_NEW = ("new_zeros", "new_ones", "new_empty", "new_full", "new_tensor")


def constant_like(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.zeros_like(x)``: rows of a batch. Empty memory is zeroed, so that all ranks see the same."""
    if not args or not isinstance(args[0], BatchTensor):
        return NotImplemented
    rows = to_local(args[0])
    maker = torch.zeros_like if func is torch.empty_like else func
    leaf = kwargs.pop("requires_grad", False)
    made = BatchTensor.from_local(maker(rows, *args[1:], **kwargs), args[0]._layout)
    return made.requires_grad_() if leaf else made


def random_like(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.randn_like(x)``: the very numbers that one process would draw."""
    if not args or not isinstance(args[0], BatchTensor):
        return NotImplemented
    batch: BatchTensor = args[0]
    rows = to_local(batch)
    strides = World.get().strides_of_whole(rows, batch._layout)
    if is_contiguous(list(batch.shape), strides):
        template = rows.new_empty(1).expand(batch.shape)  # one number in memory
        kwargs = {"memory_format": torch.contiguous_format, **kwargs}
    else:
        template = empty_whole(rows, batch._layout, strides)
    leaf = kwargs.pop("requires_grad", False)
    made = BatchTensor.from_full(func(template, *args[1:], **kwargs), batch._layout)
    return made.requires_grad_() if leaf else made


def new(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.new_zeros(3, 4)``: a plain tensor of x's dtype and device."""
    if any(isinstance(value, BatchTensor) for value in (*args[1:], *kwargs.values())):
        return NotImplemented
    return func(to_local(args[0]), *args[1:], **kwargs)


def new_of_sizes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.new(3, 4)``, which older code fills at once, and ``x.new([2, 3])``. Empty memory is zeroed, on all ranks."""
    if is_sizes(args[1:]):
        return new(func, args, kwargs).zero_()
    are_numbers = len(args) == 2 and type(args[1]) is list and not kwargs
    are_numbers = are_numbers and all(type(leaf) in (int, float, bool) for _, leaf in leaves(args[1]))
    return new(func, args, kwargs) if are_numbers else NotImplemented


def rules() -> list[tuple[Any, Rule]]:
    """Factories and their rules."""
    return [
        *((func, constant_like) for func in _CONSTANT),
        *((func, random_like) for func in _RANDOM),
        *((getattr(Tensor, name), new) for name in _NEW),
        (Tensor.new, new_of_sizes),
    ]
