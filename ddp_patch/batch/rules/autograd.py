"""Gradients of batches. Rows carry N times the true gradient (see ``crossings``); the script sees the true one."""

from __future__ import annotations

import copy
import functools
import weakref
from typing import Any

import torch
from torch import Tensor

from ...errors import BatchError
from ..crossings import shard
from ..forms import full_tensor, mark_in_sync, source_of, to_local
from ..nodes import unheard, unhooked
from ..tensor import BatchTensor, Rule
from ..world import World

_register_hook: Any = unheard(Tensor.register_hook)  # as it was before the session patched it
_register_after: Any = unheard(Tensor.register_post_accumulate_grad_hook)


def requires_grad_(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.requires_grad_()``: the rows become a leaf whose gradient is brought back to scale as it arrives."""
    batch: BatchTensor = args[0]
    rows = to_local(batch)
    was_leaf = rows.is_leaf
    func(rows, *args[1:], **kwargs)
    if rows.requires_grad and was_leaf and not batch._halved:
        _register_hook(rows, functools.partial(_arrived, weakref.ref(batch), World.get().size))
        batch._halved = True
    batch._whole = None
    return batch


def _arrived(holder: weakref.ref[BatchTensor], size: int, grad: Tensor | None) -> Tensor | None:
    batch = holder()
    if batch is not None and batch._grad is not None:
        to_local(batch._grad)  # a write to it comes before what is added
    return None if grad is None else grad / size  # of an output that nothing uses


def set_requires_grad(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """``x.requires_grad = True``."""
    requires_grad_(Tensor.requires_grad_, args, kwargs)


def get_grad(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.grad``: one batch until more arrives. For a leaf it shares the memory of the rows' gradient."""
    batch: BatchTensor = args[0]
    source, is_whole = source_of(batch)
    value, kept = unhooked(source).grad, batch._grad
    arrived: Any = returned(value, batch, is_whole)
    if _is_shared(batch, source, is_whole):
        if value is None or kept is None or not any(form is value for form in kept.forms):
            batch._grad = arrived
    elif arrived is not None:  # in the scale of the rows, into which no write to it would come back
        batch._grad = arrived if kept is None else kept + arrived
        _put_grad(source, None)
    return batch._grad


def set_grad(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """``x.grad = None`` and ``del x.grad``."""
    batch, value = args
    if value is not None and not isinstance(value, BatchTensor):
        raise BatchError("x.grad of a batch was set to a plain tensor. Write x.grad = None, or x.grad.copy_(value).")
    source, is_whole = source_of(batch)
    _put_grad(source, None if value is None else full_tensor(value) if is_whole else to_local(value))
    if not _is_shared(batch, source, is_whole):
        _put_grad(source, None)  # torch has looked at its shape and type
    batch._grad = value


def _is_shared(batch: BatchTensor, source: Tensor, is_whole: bool) -> bool:
    """Tell whether the gradient that torch keeps is the script's: that of a leaf, in true scale."""
    return source.is_leaf and (is_whole or batch._halved)


def _put_grad(source: Tensor, value: Tensor | None) -> None:
    for form in {id(each): each for each in (source, unhooked(source))}.values():
        form.grad = value


def get_data(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.data``: the same memory without the graph, written to without a word to autograd."""
    batch: BatchTensor = args[0]
    rows = to_local(batch)
    if not rows.requires_grad:
        return BatchTensor.from_local(rows.detach(), batch._layout)
    batch._is_aliased = True
    data = BatchTensor.from_local(rows.data, batch._layout)
    data._is_aliased = True
    return data


def set_data(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.data = value`` of the same shape: it lies where the value does, and what shared its memory stays."""
    batch, value = args
    if not isinstance(batch, BatchTensor) or any(
        getattr(value, name) != getattr(batch, name) for name in ("shape", "dtype", "device")
    ):
        raise BatchError(
            f"x.data of shape {tuple(batch.shape)} was set to a tensor of shape {tuple(value.shape)}, {value.dtype} on "
            f"{value.device}, so its rows cannot be followed. Write x = value."
        )
    rows, layout = to_local(batch), batch._layout
    with torch.no_grad():
        if isinstance(value, BatchTensor) and value._layout == layout:
            new = to_local(value).detach()
        else:  # every rank's own copy of a part: what is written to it must not be seen in the value, on one rank alone
            whole = full_tensor(value) if isinstance(value, BatchTensor) else value
            new = shard(whole, layout).clone()
    if rows.requires_grad:  # the same leaf, with its gradient and hooks
        rows.data = new
        batch._is_aliased = True
    else:
        batch._rows = new
    batch._whole, batch._whole_copy, batch._is_slice = None, None, False
    mark_in_sync(batch)


def detach_(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.detach_()``: forget the graph of the rows."""
    to_local(args[0]).detach_()
    args[0]._whole = None
    return args[0]


def retain_grad(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.retain_grad()`` on an intermediate."""
    rows = to_local(args[0])
    for form in (unhooked(rows), rows, source_of(args[0])[0]):  # the script may write to it yet
        form.retain_grad()


def register_hook(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.register_hook(f)``: f sees the true gradient, as a batch, and may return another."""
    batch, hook = args[0], (args[1] if len(args) > 1 else kwargs["hook"])
    source, is_whole = source_of(batch)
    layout, scale = batch._layout, 1 if batch._halved else World.get().size

    def on_source(grad: Tensor | None) -> Tensor | None:
        if grad is None:
            return None  # that of TouchParameters: one process would not have called the hook
        given = BatchTensor.from_full(grad, layout) if is_whole else BatchTensor.from_local(grad / scale, layout)
        result = hook(given)
        if result is None and (is_whole or not was_written(given)):
            return None
        result = given if result is None else result
        if not isinstance(result, BatchTensor):
            raise BatchError("A hook on a batch returned a plain tensor. Return an expression of the gradient it got.")
        return full_tensor(result) if is_whole else to_local(result) * scale

    return _register_hook(unhooked(source), on_source)


def was_written(batch: BatchTensor) -> bool:
    """Tell whether a hook wrote to what it was given, of which the rows were made for it; NumPy's writes count none."""
    return to_local(batch)._version > 0 or batch._whole_copy is not None


def after_accumulation(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.register_post_accumulate_grad_hook(f)``: f is given the leaf, with its gradient."""
    batch, hook = args[0], (args[1] if len(args) > 1 else kwargs["hook"])
    return _register_after(to_local(batch), lambda rows: hook(batch))


def returned(value: Tensor | None, source: Tensor, is_whole: bool) -> Tensor | None:
    """Give the gradient of a batch as a batch, in the scale of the true one."""
    if value is None or not isinstance(source, BatchTensor):
        return value
    if is_whole:
        return BatchTensor.from_full(value, source._layout)
    return BatchTensor.from_local(value if source._halved else value / World.get().size, source._layout)


def deepcopy(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``copy.deepcopy(x)``: a batch of copied rows; torch refuses tensors with a graph."""
    batch: BatchTensor = args[0]
    memo = args[1] if len(args) > 1 else {}
    if id(batch) in memo:
        return memo[id(batch)]
    twin = BatchTensor.from_local(copy.deepcopy(to_local(batch)), batch._layout)
    memo[id(batch)] = twin
    return requires_grad_(Tensor.requires_grad_, (twin,), {}) if to_local(batch).requires_grad else twin


def _slot(name: str, method: str) -> Any:
    """The function that torch dispatches for reading or writing an attribute."""
    return getattr(getattr(Tensor, name), method)


def rules() -> list[tuple[Any, Rule]]:
    """Autograd's doors and their rules."""
    return [
        (Tensor.requires_grad_, requires_grad_),
        (_slot("requires_grad", "__set__"), set_requires_grad),
        (_slot("grad", "__get__"), get_grad),
        (_slot("grad", "__set__"), set_grad),
        (_slot("grad", "__delete__"), lambda func, args, kwargs: set_grad(func, (*args, None), kwargs)),
        (_slot("data", "__get__"), get_data),
        (_slot("data", "__set__"), set_data),
        (Tensor.detach_, detach_),
        (Tensor.retain_grad, retain_grad),
        (Tensor.register_hook, register_hook),
        (Tensor.register_post_accumulate_grad_hook, after_accumulation),
        (Tensor.__deepcopy__, deepcopy),
    ]
