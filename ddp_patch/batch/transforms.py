"""What works below torch's Python functions, where ranks cannot meet: torch.func, forward-mode AD, and tracing."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C import _get_dispatch_mode, _TorchDispatchModeKey  # torch 2.13
from torch._C._functorch import (  # torch 2.13
    _add_batch_dim,
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    maybe_get_bdim,
    maybe_get_level,
    peek_interpreter_stack,
)
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack  # torch 2.13
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes  # torch 2.13

from ..script_thread import Script

# Without a frame of Python: they are asked in every step.
fake_mode = functools.partial(_get_dispatch_mode, _TorchDispatchModeKey.FAKE)
proxy_mode = functools.partial(_get_dispatch_mode, _TorchDispatchModeKey.PROXY)


def is_transformed() -> bool:
    """Tell whether what is computed now is transformed, by ``vmap``, say, or ``jvp``, or recorded, by ``make_fx``."""
    return (
        peek_interpreter_stack() is not None
        # Of the process, not of the thread (torch 2.13).
        or (forward_ad._current_level >= 0 and threading.get_ident() == Script.ident)
        or proxy_mode() is not None
        or fake_mode() is not None
    )


def in_compiled_code() -> bool:
    """Tell whether TorchDynamo (torch 2.13) goes on with what comes back."""
    return "torch._dynamo" in sys.modules and callable(torch._C._dynamo.eval_frame.get_eval_frame_callback())


@contextmanager
def outside_transforms() -> Iterator[None]:
    """Surround what ranks meet in: nothing of it is transformed or recorded."""
    if not is_transformed():
        yield
        return
    with temporarily_clear_interpreter_stack(), _disable_current_modes():
        yield


def is_mapped(value: Any) -> bool:
    """Tell what ``vmap`` goes over."""
    return isinstance(value, Tensor) and is_batchedtensor(value)


def is_wrapped(value: Any) -> bool:
    """Tell what a transform computes with, of which ``jacrev``, say, takes gradients by itself."""
    return isinstance(value, Tensor) and is_functorch_wrapped_tensor(value)


def level_of(value: Tensor) -> int:
    """Number the ``vmap``, among those inside each other, that goes over a tensor."""
    return maybe_get_level(value)


def unmapped(value: Tensor) -> Tensor:
    """Give all that ``vmap`` goes over, along dimension 0."""
    return get_unwrapped(value).movedim(maybe_get_bdim(value), 0)


def mapped(value: Tensor, level: int) -> Tensor:
    """Have ``vmap`` go over a tensor's dimension 0."""
    return _add_batch_dim(value, 0, level)
