"""Calls of modules that are passed over: nothing is decided on them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch._C._functorch import peek_interpreter_stack as _transforms  # torch 2.13

from . import swap

is_tracing: Any = torch._C._is_tracing  # torch 2.13; torch.jit.is_tracing asks it, in three calls


def passes_through(module: nn.Module) -> bool:
    """Tell ``nn.DataParallel``, whose forward is known: it hands over the module that it wraps."""
    return isinstance(module, nn.DataParallel) and nn.DataParallel is next(
        kind for kind in type(module).__mro__ if "forward" in vars(kind)
    )


def is_a_layer(module: nn.Module) -> bool:
    """Tell layers of torch's that hold no others: one function, which batches know."""
    return not module._modules and swap.original_class(module).__module__.startswith("torch.nn.")


def is_rewritten() -> bool:
    """Tell whether the code is being traced, or transformed by ``torch.func``, below which ranks cannot meet."""
    return bool(is_tracing()) or _transforms() is not None
