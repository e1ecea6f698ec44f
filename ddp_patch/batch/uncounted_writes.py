"""Writes that count no version: through NumPy's arrays and ``.data`` of plain rows that were taken of a batch.

They are heard of by what stands before ``Tensor.numpy`` and ``Tensor.data``, which are inherited from C, as long as
there are such batches: nothing costs anything otherwise. Until then the wholes of these batches are compared with what
they held.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .transforms import is_wrapped
from .versions import version

if TYPE_CHECKING:
    from .tensor import BatchTensor

_Batches = Callable[[], "Iterable[weakref.ref[BatchTensor]]"]
_numpy: Any = Tensor.numpy
_slot: Any = torch._C.TensorBase.data
_batches: _Batches = list


def hear(batches: _Batches | None) -> None:
    """Stand before both, where nobody else does, or no more.

    Args:
        batches: gives those whose wholes the script has memory of; None if there are none.
    """
    global _batches  # noqa: PLW0603 — what the methods of torch's class look at
    _batches = batches or list
    for name, stands in (("numpy", numpy), ("data", _data)):
        if batches is not None and name not in vars(Tensor):
            setattr(Tensor, name, stands)
        elif batches is None and vars(Tensor).get(name) is stands:
            delattr(Tensor, name)


def numpy(self: Tensor, *, force: bool = False) -> Any:
    """Give torch's array, and remember what wholes held that it shares memory with."""
    array = _numpy(self, force=force)
    _remember(self)
    return array


def data_of(tensor: Tensor) -> Tensor:
    """Give torch's ``.data``, which the script does not get to see."""
    return _slot.__get__(tensor)  # type: ignore[no-any-return]


def is_counted(batch: BatchTensor) -> bool:
    """Tell whether what was written to a batch's whole counted a version, or is taken for a write that did."""
    whole = batch._whole
    return whole is None or whole.is_inference() or version(whole) != batch._whole_version


class _Data:
    """Gives torch's ``.data``, and remembers what wholes held that it shares memory with."""

    def __get__(self, tensor: Tensor | None, kind: type | None = None) -> Any:
        if tensor is None:
            return _slot  # which torch looks for on the class, to name it to a subclass
        with torch._C.DisableTorchFunction():
            is_view = tensor._is_view()  # as all that was taken of a batch, and no parameter is
        if is_view:
            _remember(tensor)
        return _slot.__get__(tensor)

    def __set__(self, tensor: Tensor, value: Tensor) -> None:
        _slot.__set__(tensor, value)

    def __delete__(self, tensor: Tensor) -> None:
        _slot.__delete__(tensor)


def _remember(tensor: Tensor) -> None:
    if hasattr(tensor, "_is_slice") or is_wrapped(tensor):  # a batch, whose whole came by here; what torch.func gives
        return
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:  # it may have no memory of its own
        return
    with torch._C.DisableTorchFunction():
        if tensor.layout is torch.strided:
            _copy_wholes_in(tensor.untyped_storage().data_ptr())


def _copy_wholes_in(key: int) -> None:
    for holder in _batches():
        batch = holder()
        if batch is None or batch._whole is None or batch._whole_copy is not None:
            continue
        if batch._whole.untyped_storage().data_ptr() == key:
            batch._whole_copy = batch._whole.detach().clone()


_data = _Data()
