"""The usual calls of functions that keep rows apart, with fewer questions than rules ask; None for all others.

Scripts compute losses from dozens of functions, and what is asked in each of them is most of what they cost. These are
tried first, where nothing is observed and no memory is looked at from elsewhere, and do what rules would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import DdpPatchError
from ..names import function_name
from ..tensor import BatchTensor
from ..transforms import is_transformed
from ..versions import version
from ..world import World
from .dims import wrap
from .listed_entries import note_divided

Quick = Callable[[Any, tuple[Any, ...], "dict[str, Any] | None"], Any]
_PLAIN = (int, float, bool, str, type(None))
# Not those that torch takes from NumPy, nor what has a function write.
_NAMES = {
    "dim", "keepdim", "dtype", "_stacklevel", "p", "eps", "unbiased", "correction", "descending", "stable", "k",
    "largest", "sorted", "min", "max", "alpha", "beta", "value", "rounding_mode", "negative_slope",
    "approximate", "decimals", "nan", "posinf", "neginf", "lower", "upper", "threshold", "min_val", "max_val",
    "lambd", "rtol", "atol", "equal_nan", "weight", "exponent",
}  # fmt: skip


def side_by_side(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> BatchTensor | None:
    """Compute on batches whose rows lie alike, numbers, and plain tensors that meet each row."""
    layout, local, dims, others = None, [], 0, -1
    for value in args:
        kind = type(value)
        if kind is BatchTensor:
            rows = _to_local_if_clean(value)
            if rows is None:
                return None
            if layout is None:
                layout, dims = value._layout, rows.dim()
            elif rows.dim() != dims or not (value._layout is layout or value._layout == layout):
                return None
            local.append(rows)
        elif kind is int or kind is float:
            local.append(value)
        elif kind is Tensor and not value.requires_grad:
            others = max(others, value.dim())
            local.append(value)
        else:
            return None
    if layout is None or others >= dims - layout.dim or is_transformed():
        return None
    if kwargs and not (kwargs.keys() <= _NAMES and all(type(value) in _PLAIN for value in kwargs.values())):
        return None
    result = _computed(func, local, kwargs or {})
    if type(result) is not Tensor or result is local[0]:
        return None
    return BatchTensor.from_local(result, layout)


def may_write(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> BatchTensor | None:
    """``F.relu`` and its kin, which write where they are told to by position or by name; not ``inplace=False``."""
    options = dict(kwargs or {})
    return side_by_side(func, args, options) if len(args) == 1 and options.pop("inplace", False) is False else None


def where(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> BatchTensor | None:
    """``torch.where`` with what it chooses from."""
    return side_by_side(func, args, kwargs) if len(args) == 3 else None


def divided(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> BatchTensor | None:
    """``order // k``, which may be of numbers of rows."""
    result = side_by_side(func, args, kwargs)
    note_divided(args, result)
    return result


def along(position: int, default: Any) -> Quick:
    """Make what computes along a dimension that a call names, unless that is the batch's.

    Args:
        position: where ``dim`` stands among the positional arguments, the tensor being 0.
        default: what an omitted ``dim`` means.
    """

    def quick(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        if not args or (len(args) == 1 and not kwargs and default is None):
            return None
        batch = args[0]
        if type(batch) is not BatchTensor or (rows := _to_local_if_clean(batch)) is None or is_transformed():
            return None
        dim = args[position] if len(args) > position else default if kwargs is None else kwargs.get("dim", default)
        count, layout = rows.dim(), batch._layout
        if type(dim) is not int or not -count <= dim < count or dim % count == layout.dim:
            return None
        if not all(type(value) in _PLAIN for value in args[1:]):
            return None
        if kwargs and not (kwargs.keys() <= _NAMES and all(type(value) in _PLAIN for value in kwargs.values())):
            return None
        result = _computed(func, (rows, *args[1:]), kwargs or {})
        one = result[0] if isinstance(result, tuple) else result
        if type(one) is not Tensor:
            return None
        at = layout if one.dim() == count or dim % count > layout.dim else layout.at(layout.dim - 1)
        return wrap(result, lambda its: BatchTensor.from_local(its, at))

    return quick


def rules() -> list[tuple[Any, Quick]]:
    """Functions whose number of arguments decides what they do."""
    dividing = (torch.floor_divide, Tensor.floor_divide, Tensor.__floordiv__)
    return [(torch.where, where), (Tensor.where, where), *((func, divided) for func in dividing)]


def _computed(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    world = World.current
    assert world is not None
    operation = world.operations = world.operations + 1
    try:
        return func(*args, **kwargs)
    except DdpPatchError:
        raise
    except Exception as error:
        world.check_all_failed(error, f"{function_name(func)} (operation {operation} on batches)")
        raise


def _to_local_if_clean(batch: BatchTensor) -> Tensor | None:
    """This rank's rows, if nothing has to be carried over to them first."""
    whole = batch._whole
    if whole is not None and (version(whole) != batch._whole_version or batch._whole_copy is not None):
        return None
    return batch._rows
