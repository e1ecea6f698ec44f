"""How what a call takes along is pickled, and what comes back: by value, but for what both sides have."""

from __future__ import annotations

import io
import pickle
import random
import sys
from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import Any

import cloudpickle
import torch
from torch import Tensor
from torch.nn.parameter import Parameter
from torch.utils.hooks import RemovableHandle, warn_if_has_hooks

from ..generators import kinds

_CHANGING = (Tensor, torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)
_HOST = ("cpu", "meta")


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Writes each memory once, which tensors may share, and the generators behind functions by name."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._processes = {id(each): name for name, each in _processes().items()}

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) in (Tensor, Parameter) and _is_plain(obj):
            return _reduced(obj)
        if type(obj) is torch.UntypedStorage and obj.device.type == "cpu":
            data = torch.empty(0, dtype=torch.uint8, device="cpu").set_(obj)
            return _storage, (pickle.PickleBuffer(data.numpy().data),)
        if id(obj) in self._processes:
            return _process, (self._processes[id(obj)],)
        return super().reducer_override(obj)


class Going(_Pickler):
    """Notes what is the caller's own again where it comes back: what may be changed, and what is defined there."""

    def __init__(self, file: io.BytesIO) -> None:
        """Nothing is held yet."""
        super().__init__(file)
        self.tracked: dict[int, Any] = {}
        self._changing = (*_CHANGING, *kinds())

    def reducer_override(self, obj: Any) -> Any:
        """Note classes and functions that go by value: those of ``__main__``, for one, whose globals stay there."""
        reduced = super().reducer_override(obj)
        if reduced is not NotImplemented and (isinstance(obj, type) or _is_stateless(obj)):
            self.tracked[id(obj)] = obj
        return reduced

    def persistent_id(self, obj: Any) -> None:
        """Note what the function may change."""
        if isinstance(obj, Tensor) and obj.device.type not in _HOST:
            raise ElsewhereError(obj.device)
        if isinstance(obj, self._changing):
            self.tracked[id(obj)] = obj
        if isinstance(obj, torch.nn.Module):  # what registers hooks has handles that refer to these
            self.tracked |= {id(hooks): hooks for name, hooks in vars(obj).items() if is_hooks(name)}


class ElsewhereError(Exception):
    """A tensor is on an accelerator."""


class Back(_Pickler):
    """Names what came with the call by its number."""

    def __init__(self, numbers: Mapping[int, int]) -> None:
        """Nothing is packed yet.

        Args:
            numbers: of what came with the call.
        """
        self._file = io.BytesIO()
        super().__init__(self._file)
        self._numbers = numbers
        self._to_host = False

    def packed(self, value: Any, *, to_host: bool = False) -> bytes:
        """Pickle one thing more, which may share objects with those before.

        Args:
            value: to pickle.
            to_host: take tensors to the host: on an accelerator, unpickling would make the caller use it.
        """
        self._to_host = to_host
        self._file.seek(0)
        self._file.truncate()
        self.dump(value)
        return self._file.getvalue()

    def persistent_id(self, obj: Any) -> int | None:
        """Give its number."""
        return self._numbers.get(id(obj))

    def reducer_override(self, obj: Any) -> Any:
        """Take it to the host."""
        if self._to_host and type(obj) in (Tensor, Parameter) and obj.device.type not in _HOST:
            return _on_host, (obj.detach().cpu(), type(obj) is Parameter, obj.requires_grad)
        return super().reducer_override(obj)


def numbered(tracked: Iterable[Any]) -> dict[int, int]:
    """Number what came with a call, by identity."""
    return {id(each): number for number, each in enumerate(tracked)}


def is_hooks(name: str) -> bool:
    """Tell the name of an attribute of modules in which torch keeps hooks: those of state_dict, for one."""
    return name.startswith("_") and "_hooks" in name


def number_above(hooks: Mapping[int, Any]) -> None:
    """Have hooks that are registered from now on leave these: torch counts them in each process."""
    RemovableHandle.next_id = max([RemovableHandle.next_id, *(number + 1 for number in hooks)])


def _is_stateless(obj: Any) -> bool:
    """Tell a function that has nothing of its own to change."""
    return isinstance(obj, FunctionType) and obj.__closure__ is None and not vars(obj)


def _is_plain(tensor: Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
    )


def _reduced(tensor: Tensor) -> Any:
    warn_if_has_hooks(tensor)  # as torch does, whose own reduction writes the memory of every view anew
    its = tensor.untyped_storage(), tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype
    args = (*its, type(tensor) is Parameter, tensor.requires_grad)
    return _tensor, args, vars(tensor) or None, None, None, _set_attributes


def _tensor(
    storage: torch.UntypedStorage,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    is_parameter: bool,
    requires_grad: bool,
) -> Tensor:
    value = torch.empty(0, dtype=dtype, device="cpu").set_(storage, offset, shape, stride)
    return _on_host(value, is_parameter, requires_grad)


def _on_host(value: Tensor, is_parameter: bool, requires_grad: bool) -> Tensor:
    return Parameter(value, requires_grad) if is_parameter else value.requires_grad_(requires_grad)


def _set_attributes(value: Tensor, attributes: dict[str, Any]) -> None:
    vars(value).update(attributes)


def _storage(data: bytearray) -> torch.UntypedStorage:
    return torch.UntypedStorage.from_buffer(data, dtype=torch.uint8)  # a copy, which can grow


def _processes() -> dict[str, Any]:
    """The generators behind the functions of torch, Python and NumPy; ``from random import shuffle`` refers to one."""
    generators = {"torch": torch.default_generator, "random": random.getrandbits.__self__}  # type: ignore[attr-defined]
    if "numpy" in sys.modules:
        generators["numpy"] = sys.modules["numpy"].random.get_state.__self__
    return generators


def _process(name: str) -> Any:
    if name == "numpy":
        import numpy  # noqa: F401, PLC0415 — as there
    return _processes()[name]
