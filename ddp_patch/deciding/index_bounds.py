"""Indices out of bounds, before an accelerator is asked: it would not compute anything any more.

On this rank's rows, numbers of rows that were counted over the whole batch are out of bounds; a trial is to survive it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_INTEGERS = (torch.int64, torch.int32)


def check_bounds(name: str, args: Sequence[Any]) -> None:
    """Look at the indices of a call below torch's dispatcher.

    Args:
        name: of the operator.
        args: for it.

    Raises:
        IndexError: as torch has it on the host.
    """
    if name == "index" and all(index is None or index.dtype in _INTEGERS for index in args[1]):
        pairs = list(zip(args[0].shape, args[1], strict=False))
    elif name == "index_select":
        pairs = [(args[0].shape[args[1]], args[2])] if args[0].dim() else []
    else:
        return
    for size, index in pairs:
        if isinstance(index, Tensor) and index.dtype in _INTEGERS and index.numel() and not index.is_meta:
            low, high = index.aminmax()
            if low < -size or high >= size:
                raise IndexError(f"an index of {int(low)} to {int(high)} is out of bounds for {size} rows")
