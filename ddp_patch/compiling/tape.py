"""What a function of torch's does to this rank's rows: the functions of torch that its rule calls on them.

Only where nothing else matters: ranks do not meet, nothing is read, written or drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..batch.aliases import storage_ptr
from ..batch.names import writes_in_place
from ..batch.pending_tensor import PendingTensor
from ..batch.tensor import BatchTensor
from ..batch.world import World

_READ = {"_local_scalar_dense", "equal", "is_nonzero", "item"}
_READ_BELOW = {"numpy", "tolist", "data_ptr", "__array__", "__dlpack__", "cpu"}


class TapedCall(NamedTuple):
    """A function of torch, as it was called on rows."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any

    @property
    def tensors(self) -> list[tuple[tuple[int, ...], Tensor]]:
        """Those that it gave, and where they are in its result."""
        if isinstance(self.result, Tensor):
            return [((), self.result)]
        return [((at,), item) for at, item in enumerate(self.result) if isinstance(item, Tensor)]


class TapedSum(NamedTuple):
    """A reduction over all rows that was made of what is on the tape, and waits for its sum."""

    value: Tensor
    partial: Tensor
    divisor: float | Tensor
    counted: Tensor | None
    rows: Tensor | None
    dtype: torch.dtype | None
    node: str | None


class Tape:
    """Records what is called on rows, while one function is computed on batches."""

    def __init__(self, world: World, protected: list[Tensor]) -> None:
        """Begin, empty.

        Args:
            world: the ranks, which are not to meet.
            protected: plain tensors that are not to be written to.
        """
        self.protected = {storage_ptr(tensor) for tensor in protected}
        self.calls: list[TapedCall] = []
        self.sums: list[TapedSum] = []
        self.is_whole = True  # false where something else happened than what is recorded
        self._world = world
        self._around = ExitStack()
        self._points = 0

    def __enter__(self) -> Tape:
        """Record from here on."""
        self._points = self._world.trail.count
        self._world.tape = self
        self._around.enter_context(_Below(self))
        self._around.enter_context(_Functions(self))
        return self

    def summed(self, *made_of: Any) -> None:
        """Note a sum that waits, and what it was made of; see ``pending_reduction``."""
        self.sums.append(TapedSum(*made_of))

    def __exit__(self, *_: object) -> None:
        """Record no longer."""
        self._around.close()
        self._world.tape = None
        self.is_whole = self.is_whole and self._world.trail.count == self._points


class _Functions(TorchFunctionMode):
    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, tape = kwargs or {}, self._tape
        if torch._C._is_torch_function_enabled():
            for kind in (BatchTensor, PendingTensor):
                if any(issubclass(its, kind) for its in types):
                    with self:  # what its rule calls
                        return kind.__torch_function__(func, types, args, kwargs)
        result = func(*args, **kwargs)
        if getattr(func, "__name__", "") in _READ_BELOW or writes_in_place(func, kwargs):
            tape.is_whole = False
        if isinstance(result, Tensor) or (
            isinstance(result, (tuple, list)) and any(isinstance(item, Tensor) for item in result)
        ):
            tape.calls.append(TapedCall(func, tuple(args), dict(kwargs), result))
        return result


class _Below(TorchDispatchMode):
    def __init__(self, tape: Tape) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._tape = tape

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (
            func.namespace not in ("aten", "prims")
            or (func._schema.is_mutable and self._writes(func._schema, args, kwargs or {}))
            or torch.Tag.nondeterministic_seeded in func.tags
            or func._schema.name.partition("::")[2] in _READ
        ):
            self._tape.is_whole = False
        return func(*args, **(kwargs or {}))

    def _writes(self, schema: Any, args: Any, kwargs: dict[str, Any]) -> bool:
        """Tell whether a function writes to what was there before, and not to a tensor of its own."""
        for at, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[at] if at < len(args) else kwargs.get(argument.name)
                written = value if isinstance(value, (list, tuple)) else [value]
                keys = (storage_ptr(tensor) for tensor in written if isinstance(tensor, Tensor))
                if any(key in self._tape.protected for key in keys):
                    return True
        return False
