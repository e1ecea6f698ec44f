"""torch.compile around a model: what it compiles runs on rows, and a loss in it is that of all rows.

TorchDynamo would put a loss function into its graph, where ranks cannot meet. While a forward that computes a loss runs
on rows, these functions break the graph, so that they are called between two of its parts. Code that runs on batches is
not compiled: it computes the same, but for what it calls on rows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn

from ..batch.rules.losses import LOSSES


def is_used() -> bool:
    """Tell whether this program compiles anything."""
    return "torch._dynamo.trace_rules" in sys.modules


def stance(kind: Literal["force_eager", "default"]) -> AbstractContextManager[Any]:
    """Surround what is not to be compiled, or what is, inside that."""
    return torch.compiler.set_stance(kind) if is_used() else nullcontext()


@contextmanager
def losses_break_graphs() -> Iterator[None]:
    """Surround a forward on rows that computes a loss."""
    if not is_used():
        yield
        return
    ids: Any = sys.modules["torch._dynamo.trace_rules"]._disallowed_callable_ids  # torch 2.13
    added = [key for key in (id(getattr(F, function.__name__)) for function in LOSSES) if key not in ids]
    for key in added:
        ids.add(key)
    try:
        yield
    finally:
        for key in added:
            ids.remove(key)


def needs_one_graph(error: BaseException) -> bool:
    """Tell whether TorchDynamo refused a forward, because ``fullgraph=True`` does not let it break a graph."""
    exc = sys.modules.get("torch._dynamo.exc")
    return exc is not None and isinstance(error, exc.Unsupported)


def writings(layers: list[nn.Module]) -> int | None:
    """Count how often the buffers of layers were written, if code is compiled."""
    if not is_used():
        return None
    return sum(buffer._version for layer in layers for buffer in layer._buffers.values() if buffer is not None)
