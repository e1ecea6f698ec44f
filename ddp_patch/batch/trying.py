"""Functions of torch's without a rule: on the whole batch, until they were seen to keep rows apart.

A function is tried on generic values where a forward is observed, and elsewhere when a call of its form comes a second
time. What it did holds for calls of the same form: the same function, numbers of Python, shapes and types.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from ..structure import leaves
from .crossings import replicate, shard
from .forms import to_local
from .nested import nested
from .shared_memory import note_view
from .tensor import BatchTensor, by_rule, on_whole
from .tried_calls import TriedCall
from .world import World

# What may refuse a value in the rows of one rank, which a script may catch; what leaves small values as they are; what
# goes by how a tensor lies in memory.
_BY_VALUE = {
    *(name for name in dir(torch.linalg) if not name.startswith("_")),
    "cholesky_inverse", "cholesky_solve", "geqrf", "inverse", "lobpcg", "lu_unpack", "orgqr", "ormqr", "pinverse",
    "svd_lowrank", "pca_lowrank", "triangular_solve", "renorm", "masked_scatter",
    "as_strided", "as_strided_copy", "as_strided_scatter",
} - {"cross", "diagonal", "matrix_norm", "matmul", "multi_dot", "norm", "vecdot", "vector_norm", "vander"}  # fmt: skip
_BY_SIZE = {"renorm", "renorm_"}  # along other dimensions than the one that is named, and large values alone
_PLAIN = (
    bool, int, float, complex, str, type(None), torch.Size, torch.dtype, torch.device, torch.layout,
    torch.memory_format, types.EllipsisType,
)  # fmt: skip
_COMPILED = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.MethodWrapperType, types.WrapperDescriptorType,
)  # fmt: skip


class _Unknown(Exception):
    """An argument of which nobody can tell whether it is the same in the next call."""


def unruled(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function that has no rule."""
    world = World.get()
    form = _form(func, args, kwargs)
    cached = world.unruled_calls.lookup(form)
    if cached is not None and cached.dims is not None:
        _meet(world, args, kwargs, cached)
        cut = {id(leaf) for path, leaf in leaves((args, kwargs)) if path in cached.cut} if cached.cut else set()
        return by_rule(functools.partial(_on_rows, cached.dims, cut), func, args, kwargs)
    batches = [leaf for _, leaf in leaves((args, kwargs)) if isinstance(leaf, BatchTensor)]
    gathers = any(batch._whole is None for batch in batches)  # so that every rank is here

    def deal(result: Any) -> Any:
        tensors = [leaf for _, leaf in leaves(result) if isinstance(leaf, Tensor)]
        is_dense = bool(tensors) and all(leaf.layout is torch.strided for leaf in tensors)
        _meet(world, args, kwargs, cached)
        tried = None
        if cached is not None:
            return None
        if func.__name__ in _BY_SIZE and not _names_rows(args, kwargs, batches):
            if world.observation is not None:
                world.observation.note_tried_function(TriedCall(None))
            return None
        if world.observation is not None:
            tried = world.observation.try_function(func, args, kwargs, is_dense and form is not None)
        elif gathers and is_dense and world.unruled_calls.is_due(form):
            tried = world.unruled_calls.agreed(func, args, kwargs, True)
        if tried is not None and is_dense:
            world.unruled_calls.note(form, tried)
        if tried is None or tried.dims is None:
            return None
        return _dealt(result, tried.dims, batches, whole=True)

    return on_whole(func, args, kwargs, deal)


def _meet(world: World, args: tuple[Any, ...], kwargs: dict[str, Any], cached: TriedCall | None) -> None:
    seen = world.observation
    if seen is None:
        return
    for _, leaf in leaves((args, kwargs)):
        if isinstance(leaf, Tensor) and not isinstance(leaf, BatchTensor) and leaf.requires_grad:
            seen.note_trained_tensor(leaf)
    if cached is not None:
        seen.note_tried_function(cached)


def _names_rows(args: tuple[Any, ...], kwargs: dict[str, Any], batches: list[BatchTensor]) -> bool:
    """Tell whether ``renorm(x, p, dim, maxnorm)`` takes each row for itself."""
    dim = args[2] if len(args) > 2 else kwargs.get("dim")
    return isinstance(dim, int) and dim % batches[0].dim() == batches[0]._layout.dim


def _on_rows(dims: Any, cut: set[int], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    batches: list[BatchTensor] = []

    def take(value: Any) -> Any:
        if isinstance(value, BatchTensor):
            batches.append(value)
            return to_local(value)
        if id(value) in cut:
            return shard(value, layout)
        return replicate(value) if isinstance(value, Tensor) else value

    layout = next(leaf._layout for _, leaf in leaves((args, kwargs)) if isinstance(leaf, BatchTensor))

    result = func(*nested(take, args), **nested(take, kwargs))
    return _dealt(result, dims, batches, whole=False)


def _dealt(result: Any, dims: Any, batches: list[BatchTensor], *, whole: bool) -> Any:
    """Results of a function that keeps rows apart, as batches."""
    paths, layout = {id(leaf): path for path, leaf in leaves(result)}, batches[0]._layout
    by_id = {id(batch._whole if whole else batch._rows): batch for batch in batches}

    def deal(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or id(leaf) in by_id:
            return by_id.get(id(leaf), leaf)
        its = dims[paths[id(leaf)]].of(layout)
        if not whole:
            return BatchTensor.from_local(leaf, its)
        batch = BatchTensor.from_full(leaf, its)
        note_view(batch, batches)
        return batch

    return nested(deal, result)


def _form(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable | None:
    if not _is_torchs(func) or getattr(func, "__name__", "").removeprefix("linalg_") in _BY_VALUE:
        return None
    try:
        return func, _describe(args), _describe(kwargs)
    except _Unknown:
        return None


def _is_torchs(func: Any) -> bool:
    """Tell a function of torch's, of which the next call computes what this one does."""
    if isinstance(func, _COMPILED):
        return True
    return isinstance(func, types.FunctionType) and (func.__module__ or "").startswith("torch.")


def _describe(value: Any) -> Hashable:
    if isinstance(value, BatchTensor):
        return BatchTensor, value.dtype, value.device, value.shape, value._layout
    if isinstance(value, Tensor):
        return Tensor, value.dtype, value.device, value.layout, value.shape
    if isinstance(value, (list, tuple)) and type(value) is not torch.Size:
        return type(value), *map(_describe, value)
    if type(value) is dict:
        return dict, *((key, _describe(item)) for key, item in value.items())
    if type(value) in _PLAIN:
        return type(value), value
    raise _Unknown
