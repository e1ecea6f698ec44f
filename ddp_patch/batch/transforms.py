"""torch.func and forward-mode AD work below torch's Python functions, where ranks cannot meet."""

from __future__ import annotations

from torch._C._functorch import peek_interpreter_stack  # torch 2.13
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack as outside_transforms  # torch 2.13
from torch.autograd import forward_ad

__all__ = ["is_transformed", "outside_transforms"]


def is_transformed() -> bool:
    """Tell whether what is computed now is transformed, by ``vmap``, say, or ``jvp``."""
    return peek_interpreter_stack() is not None or forward_ad._current_level >= 0  # torch 2.13
