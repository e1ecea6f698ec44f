"""torch.jit and torch.export: what is compiled is torch's own functions and what one process would compute."""

from __future__ import annotations

from typing import Any

import torch
from torch.jit import _builtins

from ..batch.forms import whole_of
from ..batch.promised import PromisedTensor, arrive
from ..batch.tensor import BatchTensor
from ..patcher import Patch, Planted
from ..structure import leaves, map_leaves


def patches() -> list[Patch]:
    """Rows for what compiles the script's code."""
    # The table of identities is made when it is first asked (torch 2.13): with torch's own functions, so now.
    _builtins._find_builtin(torch.zeros)

    def find(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def bind(fn: Any) -> Any:
            while isinstance(fn, Planted):
                fn = fn.__wrapped__
            return wrapped(fn)

        return bind(*args, **kwargs)

    def call(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = [leaf for _, leaf in leaves((args, kwargs))]
        for leaf in given:
            if isinstance(leaf, PromisedTensor):
                arrive(leaf)
        if not any(isinstance(leaf, BatchTensor) for leaf in given):
            return wrapped(*args, **kwargs)

        def scripted(*whole: Any, **named: Any) -> Any:
            return wrapped(*whole, **named)

        scripted.__name__ = instance.name
        return BatchTensor.__torch_function__(scripted, (), args, kwargs)

    def example(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # What is recorded is the author's code, on tensors that know the whole batch.
        return wrapped(*map_leaves(_whole, args), **map_leaves(_whole, kwargs))

    whole = "gets whole batches"
    return [
        # By identity, in the middle of a compilation, wherever the script has bound the function. The compiler asks
        # for this one by name, from C++ (torch 2.13).
        Patch("torch.jit._builtins", "_find_builtin", find, "sees through the patches", everywhere=True),
        Patch("torch.jit", "ScriptFunction.__call__", call, whole),
        Patch("torch._C", "ScriptMethod.__call__", call, whole),
        Patch("torch.jit._trace", "trace", example, whole, everywhere=True),
        Patch("torch.jit._trace", "trace_module", example, whole, everywhere=True),
        Patch("torch.export", "export", example, whole, everywhere=True),
    ]


def _whole(leaf: Any) -> Any:
    return whole_of(leaf) if isinstance(leaf, BatchTensor) else leaf
