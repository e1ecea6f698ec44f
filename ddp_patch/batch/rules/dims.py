"""Functions of whole dimensions: local as long as the batch dimension is not one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from ..forms import to_local
from ..names import as_int
from ..nested import nested
from ..tensor import BatchTensor, Rule

_MISSING = object()


def along(name: str, position: int, default: Any) -> Rule:
    """Make the rule of a function with a ``dim`` argument.

    Args:
        name: the function's name, for its peculiarities.
        position: where ``dim`` stands among the positional arguments, the tensor being 0.
        default: what an omitted ``dim`` means; None for all dimensions.
    """

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs.get("out") is not None or not args or not isinstance(args[0], BatchTensor):
            return NotImplemented
        if any(isinstance(value, Tensor) for value in (*args[1:], *kwargs.values())):
            if name in ("max", "min") and len(args) == 2 and not kwargs:
                return _elementwise()(func, args, kwargs)
            return NotImplemented
        batch: BatchTensor = args[0]
        reduced = named_dims(batch, args, kwargs, position, default)
        if reduced is None or batch._layout.dim in reduced:
            return NotImplemented
        result = func(to_local(batch), *args[1:], **kwargs)
        one = result if isinstance(result, Tensor) else result[0]
        stays = one.dim() == batch.dim()
        dim = batch._layout.dim - (0 if stays else sum(d < batch._layout.dim for d in reduced))
        return wrap(result, lambda rows: BatchTensor.from_local(rows, batch._layout.at(dim)))

    return rule


def named_dims(
    batch: BatchTensor, args: tuple[Any, ...], kwargs: dict[str, Any], position: int, default: Any
) -> set[int] | None:
    """Dimensions that a call names, counted from the left; None for all of them or for anything unclear."""
    dim = kwargs.get("dim", kwargs.get("axis", args[position] if len(args) > position else _MISSING))
    dim = default if dim is _MISSING else nested(as_int, dim)
    if isinstance(dim, bool) or dim is None:
        return None
    dims = [dim] if isinstance(dim, int) else dim
    if not isinstance(dims, (list, tuple)) or not dims or not all(type(d) is int for d in dims):
        return None
    if not all(-batch.dim() <= d < batch.dim() for d in dims):
        return None
    return {d % batch.dim() for d in dims}


def softmax(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``F.softmax(x)``: where ``dim`` is left out, torch chooses it by the number of dimensions, and warns."""
    batch, dim = args[0], args[1] if len(args) > 1 else kwargs.get("dim")
    if dim is not None or not isinstance(batch, BatchTensor):
        return _softmax(func, args, kwargs)
    if batch._layout.dim == (0 if batch.dim() in (0, 1, 3) else 1):  # torch.nn.functional._get_softmax_dim, torch 2.13
        return NotImplemented
    return BatchTensor.from_local(func(to_local(batch), *args[1:], **kwargs), batch._layout)


_softmax = along("softmax", 1, None)


def wrap(result: Any, make: Callable[[Tensor], Any]) -> Any:
    """Make batches of a result, be it one tensor or a named tuple of them."""
    if isinstance(result, Tensor):
        return make(result)
    return type(result)([make(item) for item in result])


def one_hot(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Row-wise once the number of classes is given; otherwise it depends on the largest label of all rows."""
    classes = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
    if not args or not isinstance(args[0], BatchTensor) or classes == -1:
        return NotImplemented
    return BatchTensor.from_local(func(to_local(args[0]), classes), args[0]._layout)


def _elementwise() -> Rule:
    from .elementwise import out_of_place  # noqa: PLC0415 — siblings

    return out_of_place


def rules() -> list[tuple[Any, Rule]]:
    """Functions of dimensions that have a form of their own."""
    of_softmax = (F.softmax, F.log_softmax, F.softmin)
    return [(F.one_hot, one_hot), *((func, softmax) for func in of_softmax)]
