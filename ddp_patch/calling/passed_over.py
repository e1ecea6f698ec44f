"""Calls of modules that are passed over: nothing is decided on them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..batch.transforms import is_transformed
from . import swap
from .calls import Call
from .items import are_plain

is_tracing: Any = torch._C._is_tracing  # torch 2.13; torch.jit.is_tracing asks it, in three calls


def is_data_parallel(module: nn.Module) -> bool:
    """Tell ``nn.DataParallel``, whose forward is known: it hands over the module that it wraps."""
    return isinstance(module, nn.DataParallel) and nn.DataParallel is next(
        kind for kind in type(module).__mro__ if "forward" in vars(kind)
    )


def is_torch_layer(module: nn.Module) -> bool:
    """Tell layers of torch's that hold no others: one function, which batches know."""
    return not module._modules and swap.original_class(module).__module__.startswith("torch.nn.")


def is_passed_over(call: Call, is_inner: bool, rows: int | None) -> bool:
    """Tell calls that are passed over: their modules are known.

    Args:
        call: of some module.
        is_inner: a forward makes it that runs as written.
        rows: of the batch, or entries of the lists that this is given. What a function computed of the whole, as a sum
            along the rows, is plain, and is dealt to the layer behind it.
    """
    is_known = is_torch_layer(call.module) if is_inner else is_data_parallel(call.module)
    return is_known and (rows is None or not are_plain(call.leaves, rows))


def is_under_transform() -> bool:
    """Tell whether the code is being traced, or transformed by ``torch.func``, below which ranks cannot meet."""
    return bool(is_tracing()) or is_transformed()
