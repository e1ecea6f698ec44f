"""Which nodes of a traced graph write to tensors."""

from __future__ import annotations

import operator

from torch import Tensor, fx

from ..batch.names import writes_in_place
from .program import Run


def writes(node: fx.Node, run: Run) -> bool:
    """Tell what writes to a tensor that others may share memory with."""
    if not is_writer(node):
        return False
    target = run.value(node.args[0]) if node.args and isinstance(node.args[0], fx.Node) else None
    is_number = isinstance(target, Tensor) and target.dim() == 0
    return node.target is operator.setitem or not is_number or "out" in node.kwargs


def is_writer(node: fx.Node) -> bool:
    """Tell by its name what writes to a tensor."""
    func = getattr(Tensor, node.target, None) if isinstance(node.target, str) else node.target
    return writes_in_place(func, dict(node.kwargs)) or getattr(func, "__name__", "") in _OPERATORS


_OPERATORS = {"setitem", *(f"i{name}" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"))}
_OPERATORS |= {f"i{name}" for name in ("and", "or", "xor", "lshift", "rshift", "matmul")}
