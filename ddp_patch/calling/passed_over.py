"""Calls of modules that are passed over: nothing is decided on them."""

from __future__ import annotations

from torch import nn
from torch._C._functorch import peek_interpreter_stack as _transforms  # torch 2.13
from torch.jit import is_tracing as _is_tracing  # type: ignore[attr-defined]  # documented, and not annotated

from . import swap


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
    return bool(_is_tracing()) or _transforms() is not None
