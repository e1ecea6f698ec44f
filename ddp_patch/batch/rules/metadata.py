"""What a batch says about itself without looking at a value."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..forms import full_tensor, to_local
from ..sizes import observed_sizes
from ..strides import scaled
from ..tensor import BatchTensor, Rule
from ..world import World

_SIZES = {
    *(Tensor.size, Tensor.shape.__get__, Tensor.__len__, Tensor.numel, Tensor.nelement),  # type: ignore[attr-defined]
    torch.numel,
}
_ALL = {Tensor.size, Tensor.shape.__get__}  # type: ignore[attr-defined]


def of_the_whole(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer for the whole batch; the wrapper itself carries the global shape."""
    if func in _SIZES:
        _note_that_it_is_asked()
    with torch._C.DisableTorchFunctionSubclass():
        answer = func(*args, **kwargs)
    if func not in _ALL or World.current is None or not World.current.is_asked_by_forward:
        return answer
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    return observed_sizes(args[0]._layout, answer, args[0].dim(), dim)


def _note_that_it_is_asked() -> None:
    if World.current is not None and World.current.observation is not None:
        World.current.observation.note_size_query()


def same_size(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Compare the sizes of whole batches, each of which the wrapper carries."""
    _note_that_it_is_asked()
    left, right = [*args, *kwargs.values()]
    return bool(left.shape == right.shape)


def of_the_rows(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer for the rows, which carry the autograd graph."""
    return func(to_local(args[0]))


def of_types(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer for types and devices of several, which rows have as the whole has them."""
    return func(*(to_local(arg) if isinstance(arg, BatchTensor) else arg for arg in args), **kwargs)


def as_text(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Show the whole; that of a leaf is none."""
    batch: BatchTensor = args[0]
    if not (batch.requires_grad and batch.is_leaf):
        return NotImplemented
    return func(full_tensor(batch).detach().requires_grad_(), **kwargs)


def strides_of(batch: BatchTensor) -> tuple[int, ...]:
    """Strides that one process's tensor has. One exchange among the ranks where a rank's only row cannot tell."""
    rows, world = to_local(batch), World.current
    if batch._lies_as_whole and batch._whole is not None:
        return batch._whole.stride()
    if world is None or world.skips_collectives:  # after disable() a batch still knows its shape
        return scaled(rows, batch._layout)
    return world.strides_of_whole(rows, batch._layout)


def stride(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Strides that the whole batch would have, were it laid out as the rows are."""
    _note_that_it_is_asked()
    batch: BatchTensor = args[0]
    strides = strides_of(batch)
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    return strides if dim is None else strides[dim]


def is_contiguous(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Rows of a contiguous batch are contiguous."""
    batch: BatchTensor = args[0]
    return func(torch.empty_strided(batch.shape, strides_of(batch), device="meta"), *args[1:], **kwargs)


def type_name(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.type()`` names the tensor type; with an argument it casts."""
    if len(args) > 1 or kwargs:
        from .elementwise import cast  # noqa: PLC0415 — siblings

        return cast(func, args, kwargs)
    return func(to_local(args[0]))


def is_shared(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Predicates of the memory that holds the rows."""
    return func(to_local(args[0]), *args[1:], **kwargs)


def of_every_form(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """What is said of memory, such as which stream uses it, is said of all that this rank has of the batch."""
    for form in args[0].forms:
        func(form, *args[1:], **kwargs)


def nbytes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Bytes of the whole batch."""
    _note_that_it_is_asked()
    batch: BatchTensor = args[0]
    return math.prod(batch.shape) * to_local(batch).element_size()


def rules() -> list[tuple[Any, Rule]]:
    """Functions that need more than the wrapper's own answer."""
    return [
        (Tensor.stride, stride),
        (Tensor.is_same_size, same_size),
        (torch.is_same_size, same_size),
        (torch.result_type, of_types),
        (torch._C._nn._parse_to, of_types),  # torch 2.13: ``module.to(batch)`` asks it for a type and a device
        (Tensor.__repr__, as_text),
        (Tensor.__dir__, of_the_rows),  # Python asks for a name like one that is missing, on the rank that says so
        (Tensor.is_contiguous, is_contiguous),
        (Tensor.type, type_name),
        (Tensor.is_pinned, is_shared),
        (Tensor.is_shared, is_shared),
        (Tensor.is_inference, is_shared),
        (Tensor.is_conj, is_shared),
        (Tensor.is_neg, is_shared),
        (Tensor.record_stream, of_every_form),
        (Tensor.nbytes.__get__, nbytes),  # type: ignore[attr-defined]
    ]
