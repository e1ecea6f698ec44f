"""``torch.tensor(batch)`` and its kin: factories that read what they are given below torch's overrides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import has_torch_function_unary
from torch.utils.weak import WeakTensorKeyDictionary

from ..patch import Args, Kwargs, Wrapper
from ..structure import map_leaves
from .forms import full_tensor
from .pending_tensor import PendingTensor, wait_for
from .sizes import cut
from .tensor import BatchTensor
from .world import World

_CONSTANT = ("zeros", "ones", "empty", "full", "new_zeros", "new_ones", "new_empty", "new_full", "new")
_EMPTY = ("empty", "new_empty", "new")
_counting: Any = WeakTensorKeyDictionary()  # made by torch.arange(n) -> the version that it had


def of_batches(name: str, otherwise: Wrapper) -> Wrapper:
    """Give what a factory makes of batches.

    Args:
        name: of the factory.
        otherwise: the wrapper for its other arguments.
    """
    if name.startswith("sparse_"):
        return _of_wholes(name, otherwise)
    if name in _CONSTANT:
        return _constant(name, otherwise)
    if name == "arange":
        return _arange(otherwise)
    convert: dict[str, Callable[..., Any]] = {"tensor": _tensor, "as_tensor": _as_tensor, "asarray": _asarray}
    return _of_batch(convert[name], otherwise) if name in convert else otherwise


def _of_batch(convert: Callable[..., Any], otherwise: Wrapper) -> Wrapper:
    """Make the wrapper of a factory that converts a batch.

    Args:
        convert: gets the factory of torch, and what it is called with.
        otherwise: the wrapper for its other arguments.
    """

    def converted(session: Any, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        if _takes_batch(args, kwargs):
            return convert(wrapped, *args, **kwargs)
        return otherwise(session, wrapped, instance, args, kwargs)

    return converted


def _tensor(
    wrapped: Any, /, data: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False, **_: Any
) -> Any:
    made = wrapped(torch.empty(0))  # warns that tensors are not to be copied like that
    place = made.device if device is None and has_torch_function_unary(None) else device
    return data.detach().clone().to(device=place, dtype=dtype).requires_grad_(requires_grad)


def _as_tensor(wrapped: Any, /, data: Any, dtype: Any = None, device: Any = None) -> Any:
    if device is None and has_torch_function_unary(None):  # a mode, as that of a default device
        device = wrapped(torch.empty(0)).device
    return data.to(device=device, dtype=dtype)


def _asarray(wrapped: Any, /, obj: Any, *, dtype: Any = None, device: Any = None, copy: Any = None, **rest: Any) -> Any:
    if device is None and has_torch_function_unary(None):
        device = wrapped(torch.empty(0)).device
    made = obj.to(device=device, dtype=dtype)
    if copy and made is obj:
        made = obj.clone()
    elif copy is False and made is not obj:
        raise ValueError("can't alias tensor of another dtype or device")
    requires_grad = rest.get("requires_grad")
    if requires_grad is None:
        if obj.requires_grad:
            wrapped(torch.empty(0, requires_grad=True))  # warns of that (torch 2.13)
        return made
    # As torch has it (tensor_new.cpp): a leaf is given the flag, another tensor let go of its graph.
    return made.detach() if not (made.is_leaf or requires_grad) else made.requires_grad_(requires_grad)


def _of_wholes(name: str, otherwise: Wrapper) -> Wrapper:
    def sparse(session: Any, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        if not any(isinstance(value, BatchTensor) for value in (*args, *kwargs.values())):
            return otherwise(session, wrapped, instance, args, kwargs)
        with World.get().working_on_whole(f"torch.{name}"):
            return otherwise(session, wrapped, instance, map_leaves(_whole, args), map_leaves(_whole, kwargs))

    return sparse


def _arange(otherwise: Wrapper) -> Wrapper:
    def arange(session: Any, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        made = otherwise(session, wrapped, instance, args, kwargs)
        if len(args) == 1 and isinstance(args[0], int) and not (torch.compiler.is_compiling() or made.is_inference()):
            _counting[made] = made._version  # inference tensors have none
        return made

    return arange


def _constant(name: str, otherwise: Wrapper) -> Wrapper:
    def constant(session: Any, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        world = World.current
        if world is None or not world.tells_batch_sizes or kwargs.get("out") is not None:
            return otherwise(session, wrapped, instance, args, kwargs)
        sizes = kwargs.get("size", args[0] if args else None)
        if name == "new" and not is_sizes(args):
            return otherwise(session, wrapped, instance, args, kwargs)
        is_one = isinstance(sizes, (tuple, list))
        its = cut(sizes if is_one else args, world.rank)
        if its is None:
            return otherwise(session, wrapped, instance, args, kwargs)
        leaf = kwargs.pop("requires_grad", False)
        if "size" in kwargs:
            kwargs["size"] = its[0]
        else:
            args = (torch.Size(its[0]), *args[1:]) if is_one else tuple(its[0])
        rows = otherwise(session, wrapped, instance, args, kwargs)
        # Empty memory is zeroed, so that all ranks see the same.
        made = BatchTensor.from_local(rows.zero_() if name in _EMPTY else rows, its[1])
        made._is_of_size = True
        return made.requires_grad_() if leaf else made

    return constant


def is_sizes(args: Args) -> bool:
    """Tell whether the arguments of ``x.new(...)`` are sizes: a list or a tuple would be entries."""
    return bool(args) and (all(isinstance(arg, int) for arg in args) or isinstance(args[0], torch.Size))


def counts(indices: Any, total: int) -> bool:
    """Tell whether indices are 0, 1, 2, ... up to a total, without waiting for those that ``torch.arange`` made.

    They may lie along the first of several dimensions, as in ``torch.arange(total)[:, None]``.
    """
    if isinstance(indices, range):
        return indices == range(total)
    if not isinstance(indices, Tensor) or isinstance(indices, BatchTensor):
        return False
    if indices.dtype != torch.long or indices.numel() != total or indices.shape[:1] != (total,):
        return False
    # On the host a look costs little, and NumPy writes to its memory without a word.
    if not indices.is_cpu and not indices.is_inference():
        made = indices if indices._base is None else indices._base
        if made.shape == (total,) and _counting.get(made) == indices._version:
            return True
    return bool((indices.flatten() == torch.arange(total, device=indices.device)).all())


def as_subclass(session: Any, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    """Read a loss before it becomes a tensor of a class that does not know that it has to wait."""
    if isinstance(instance, PendingTensor):
        wait_for(instance)
    if isinstance(instance, BatchTensor):
        with World.get().working_on_whole("Tensor.as_subclass"):
            return full_tensor(instance).as_subclass(*args, **kwargs)
    return wrapped(*args, **kwargs)


def _takes_batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return isinstance(args[0] if args else kwargs.get("data", kwargs.get("obj")), BatchTensor)


def _whole(leaf: Any) -> Any:
    return full_tensor(leaf) if isinstance(leaf, BatchTensor) else leaf
