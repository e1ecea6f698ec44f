"""What is asked of a node of a traced graph: whether it is torch's, and whether it writes to tensors."""

from __future__ import annotations

import operator
import types

import torch
from torch import Tensor, fx

from ..batch.names import writes_in_place
from .program import Run

_MODULES = ("torch", "_operator", "builtins", "math")


def is_computable(node: fx.Node) -> bool:
    """Tell what can be called on batches: no graph within the graph, and nothing below torch's functions."""
    target = node.target
    if node.op == "call_module" or isinstance(target, torch._ops.HigherOrderOperator):
        return False
    if node.op != "call_function" or target is torch._C._set_grad_enabled:
        return True
    module = str(getattr(target, "__module__", ""))
    if isinstance(target, types.BuiltinFunctionType):
        return module in _MODULES or torch.overrides.resolve_name(target) is not None
    return not module.startswith(("torch._C", "torch._functorch"))


def is_torchs(node: fx.Node) -> bool:
    """Tell a function of torch's, which does in every call what it did in the first."""
    if node.op != "call_function":
        return node.op == "call_method"
    if getattr(node.target, "__module__", "") in _MODULES[1:]:
        return True
    return torch.overrides.resolve_name(node.target) is not None


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
