"""Sums and means that a forward writes itself: like its losses, they are those of all rows while rows are computed.

So that they are heard of, a mode surrounds forwards that are observed. It hears of constants that are spread as well.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, handle_torch_function

from .noted_reductions import reduced
from .spread import SPREADING, spread
from .world import World

_NAMES: dict[Any, str] = {Tensor.sum: "sum", torch.sum: "sum", Tensor.mean: "mean", torch.mean: "mean"}
_OURS = str(Path(__file__).parents[1]) + os.sep
_FUNCTIONS = torch.autograd.function.__file__


def noticed(are_there: bool) -> AbstractContextManager[Any]:
    """Surround a forward whose sums and means are noted, or are those of all rows.

    Args:
        are_there: there may be some; if not, its functions are called as they are.
    """
    return _Sums() if are_there else nullcontext()


def unnoticed(tensor: Tensor, func: Any, args: Any, kwargs: Any) -> Any:
    """Call a function that asks whether a mode hears of its tensors as it asks where no sums are noted.

    Args:
        tensor: one of its arguments.
        func: to call.
        args: for it.
        kwargs: likewise.
    """
    if not _Sums.entered:
        return func(*args, **kwargs)
    return handle_torch_function(func, (tensor,), *args, **kwargs)  # within the mode that is on top, it is off


class _Sums(TorchFunctionMode):
    """Hears of every sum and mean, of batches or not: on rows they are told apart by their order."""

    entered: ClassVar[int] = 0

    def __enter__(self) -> Any:
        _Sums.entered += 1
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        _Sums.entered -= 1
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = _NAMES.get(func), kwargs or {}
        if func in SPREADING and not kwargs and (batch := spread(func, args)) is not None:
            return batch
        if (
            name is None
            or not args
            or "out" in kwargs
            or not isinstance(args[0], Tensor)
            or _is_below(sys._getframe(1))
        ):
            return func(*args, **kwargs)
        return reduced(World.get(), name, func, args, kwargs)


def _is_below(frame: FrameType | None) -> bool:
    """Tell a call by ddp_patch itself, or inside of a script's autograd function, which is taken as one."""
    if frame is not None and frame.f_code.co_filename.startswith(_OURS):
        return True
    while frame is not None and not frame.f_code.co_filename.startswith(_OURS):
        if frame.f_code.co_filename == _FUNCTIONS:
            return True
        frame = frame.f_back
    return False
