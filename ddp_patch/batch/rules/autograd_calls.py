"""Gradients that are asked for: ``x.backward(gradient)`` and ``torch.autograd.grad``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.overrides import is_tensor_like

from ..forms import source_of
from ..nodes import unhooked
from ..tensor import BatchTensor, Rule
from ..world import World
from .autograd import returned

_asked: list[Tensor] = []
_NOT_SCALAR = "grad can be implicitly created only for scalar outputs"  # torch's own words


def is_of_batch(source: Any) -> bool:
    """Tell whether a gradient is asked for of a form of a batch: each rank has its own rows of it, and not a share."""
    return any(source is form for form in _asked)


def as_list(value: Any) -> list[Any]:
    """Give what torch makes a tuple of: a tensor, an edge of a graph, or anything that can be iterated, maybe once."""
    if value is None:
        return []
    return [value] if is_tensor_like(value) or isinstance(value, GradientEdge) else list(value)


def backward(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.backward(gradient)``: the same as the backward of ``(x * gradient).sum()``."""
    batch = args[0]
    gradient = args[1] if len(args) > 1 else kwargs.pop("gradient", None)
    root = batch if gradient is None else _weighted(batch, gradient, apart=False)
    if isinstance(root, BatchTensor):
        raise RuntimeError(_NOT_SCALAR)  # noqa: TRY004 — torch raises RuntimeError
    names = ("retain_graph", "create_graph", "inputs")
    kwargs = {**kwargs, **dict(zip(names, args[2:], strict=False))}
    torch.autograd.backward(root, **kwargs)


def grad(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.autograd.grad(loss, x)``: gradients of batches come back as batches."""
    positional = dict(zip(("outputs", "inputs", "grad_outputs"), args, strict=False))
    kwargs = {**positional, **kwargs}
    outputs, inputs, weights = (as_list(kwargs.pop(name, None)) for name in ("outputs", "inputs", "grad_outputs"))
    weights = weights or [None] * len(outputs)
    apart = all(isinstance(source, BatchTensor) for source in inputs)
    roots = [
        _weighted(output, weight, apart) if isinstance(output, BatchTensor) and weight is not None else output
        for output, weight in zip(outputs, weights, strict=True)
    ]
    if any(isinstance(root, BatchTensor) for root in roots):
        raise RuntimeError(_NOT_SCALAR)
    root_weights = [
        None if isinstance(output, BatchTensor) else weight for output, weight in zip(outputs, weights, strict=True)
    ]
    sources = [source_of(source) if isinstance(source, BatchTensor) else (source, True) for source in inputs]
    forms = [unhooked(source) for source, _ in sources]
    seen = World.get().observation
    if (
        seen is not None
        and seen.sums
        and not seen.is_paused
        and any(isinstance(source, BatchTensor) for source in inputs)
    ):
        # On rows it would come back in their scale, and the trial sees that only where it is not 0.
        seen.forbid_split("its forward takes gradients of the batch after a sum over all of it", at_line=True)
    before = len(_asked)
    _asked.extend(form for form, source in zip(forms, inputs, strict=True) if isinstance(source, BatchTensor))
    try:
        with _unseen(False):
            grads = func(roots, forms, grad_outputs=root_weights, **kwargs)
    finally:
        del _asked[before:]
    return tuple(
        returned(value, source, is_whole) for value, source, (_, is_whole) in zip(grads, inputs, sources, strict=True)
    )


def _note_scale() -> None:
    seen = World.get().observation
    if seen is not None and seen.sums and not seen.is_paused:
        # On rows gradients come back times N, which a trial sees only where they are not 0.
        seen.forbid_split("its forward takes gradients of the batch, of a sum over all of it", at_line=True)


def _weighted(batch: BatchTensor, gradient: Tensor, apart: bool) -> Tensor:
    """Give what has the gradient. Its sum ties no rows together, if nothing but batches gets a gradient of it."""
    with torch.enable_grad():  # it is off in a function's own backward
        weighted = batch * gradient
        with _unseen(apart):
            return weighted.sum()


def _unseen(apart: bool) -> AbstractContextManager[None]:
    seen = World.get().observation
    return seen.paused() if seen is not None and (apart or seen.sees_gradients_apart) else nullcontext()


def rules() -> list[tuple[Any, Rule]]:
    """Functions that compute gradients, and their rules."""
    return [(Tensor.backward, backward), (torch.autograd.grad, grad)]
