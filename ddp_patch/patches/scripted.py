"""torch.jit and torch.export: what is compiled is torch's own functions and what one process would compute."""

from __future__ import annotations

from typing import Any

import torch
from torch.jit import _builtins

from ..batch.forms import full_tensor
from ..batch.pending_tensor import PendingTensor, wait_for
from ..batch.tensor import BatchTensor
from ..patch import Args, Kwargs, Patch
from ..planted import Planted
from ..session import Session
from ..structure import leaves, map_leaves


def fill_builtin_table() -> None:
    """Have torch fill its table of identities with its own functions: it does when it is first asked (torch 2.13)."""
    _builtins._find_builtin(torch.zeros)


def _find(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    def bind(fn: Any) -> Any:
        while isinstance(fn, Planted):
            fn = fn.__wrapped__
        return wrapped(fn)

    return bind(*args, **kwargs)


def _call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    values = [leaf for _, leaf in leaves((args, kwargs))]
    for leaf in values:
        if isinstance(leaf, PendingTensor):
            wait_for(leaf)
    if not any(isinstance(leaf, BatchTensor) for leaf in values):
        return wrapped(*args, **kwargs)

    def scripted(*whole: Any, **named: Any) -> Any:
        return wrapped(*whole, **named)

    scripted.__name__ = scripted.__qualname__ = _name(instance)
    return BatchTensor.__torch_function__(scripted, (), args, kwargs)


def _name(instance: Any) -> str:
    owner = getattr(instance, "owner", None)  # of a method (torch 2.13)
    return str(instance.name) if owner is None else f"{owner._type().name()}.{instance.name}"


def _example(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    # What is recorded is the author's code, on tensors that know the whole batch.
    return wrapped(*map_leaves(_whole, args), **map_leaves(_whole, kwargs))


def _whole(leaf: Any) -> Any:
    return full_tensor(leaf) if isinstance(leaf, BatchTensor) else leaf


_WHOLE = "gets whole batches"

PATCHES = (
    # By identity, in the middle of a compilation, wherever the script has bound the function. The compiler asks
    # for this one by name, from C++ (torch 2.13).
    Patch(
        "torch.jit._builtins",
        "_find_builtin",
        _find,
        "what TorchScript compiles is torch's functions, not the wrappers",
    ),
    Patch("torch.jit", "ScriptFunction.__call__", _call, _WHOLE),
    Patch("torch._C", "ScriptMethod.__call__", _call, _WHOLE),
    Patch("torch.jit._trace", "trace", _example, _WHOLE),
    Patch("torch.jit._trace", "trace_module", _example, _WHOLE),
    Patch("torch.export", "export", _example, _WHOLE),
)
