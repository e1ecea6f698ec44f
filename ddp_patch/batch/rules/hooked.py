"""Full backward hooks of modules that are called on batches see gradients as batches, in true scale.

torch passes what goes into such a module, and what comes out of it, through a node each, and asks a tensor's
``grad_fn`` for it (``torch.utils.hooks.BackwardHook``). On rows that node gets this rank's gradients, N times the true.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn.modules._functions import BackwardHookFunction  # torch 2.13

from ...errors import BatchError
from ..forms import to_local
from ..layout import Layout
from ..tensor import BatchTensor
from ..world import World
from . import metadata
from .autograd import was_written
from .elementwise import to_local_form

Grads = tuple[Any, ...]


class BatchNode:
    """Stands for the node of rows: hooks on it see batches. It is made when asked for: no graph holds itself by it."""

    def __init__(self, node: Any, layouts: list[Layout | None]) -> None:
        """Stand for it.

        Args:
            node: of the rows.
            layouts: of what it passes on, in its place; None for what is no batch.
        """
        self._node, self._layouts = node, layouts

    def __getattr__(self, name: str) -> Any:
        """Give what the node has."""
        return getattr(self._node, name)

    def register_hook(self, hook: Callable[[Grads, Grads], Grads | None]) -> Any:
        """Register a hook on gradients that come out of the node, and that came into it."""
        layouts = self._layouts

        def on_rows(into: Grads, out: Grads) -> Grads | None:
            given = _batches(into, layouts)
            return _rows(hook(given, _batches(out, layouts)), given, into, layouts)

        return self._node.register_hook(on_rows)

    def register_prehook(self, hook: Callable[[Grads], Grads | None]) -> Any:
        """Register a hook on gradients that come into the node."""
        layouts = self._layouts

        def on_rows(out: Grads) -> Grads | None:
            given = _batches(out, layouts)
            return _rows(hook(given), given, out, layouts)

        return self._node.register_prehook(on_rows)


def _batches(grads: Grads, layouts: list[Layout | None]) -> Grads:
    size = World.get().size
    return tuple(
        grad if grad is None or layout is None else BatchTensor.from_local(grad / size, layout)
        for grad, layout in zip(grads, layouts, strict=True)
    )


def _rows(result: Grads | None, given: Grads, rows: Grads, layouts: list[Layout | None]) -> Grads | None:
    if result is None and not any(map(_is_written, given)):
        return None
    return tuple(
        its if one is batch and not _is_written(batch) else _row(one, layout)
        for one, batch, its, layout in zip(result or given, given, rows, layouts, strict=True)
    )


def _is_written(batch: Any) -> bool:
    return isinstance(batch, BatchTensor) and was_written(batch)


def _row(grad: Any, layout: Layout | None) -> Any:
    if grad is None or layout is None:
        return grad
    if not isinstance(grad, BatchTensor):
        raise BatchError("A hook on a batch returned a plain tensor. Return an expression of the gradient it got.")
    return to_local(grad) * World.get().size


def passed_through(function: Any, apply: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Pass batches through such a node.

    Args:
        function: any autograd function.
        apply: of it.
        args: for it.

    Returns:
        them, or None where it is another function, no batch is among them, or another tensor has a gradient.
    """
    if function is not BackwardHookFunction:
        return None
    layouts = [arg._layout if isinstance(arg, BatchTensor) else None for arg in args]
    alone = [arg for arg in args if not isinstance(arg, BatchTensor)]
    if len(alone) == len(args) or any(arg.requires_grad for arg in alone):
        return None
    outputs = apply(*map(to_local_form, args))
    node = next((out.grad_fn for out in outputs if out.grad_fn is not None), None)
    if node is not None:
        node.layouts_of_batches = layouts
    pairs = zip(outputs, layouts, strict=True)
    return tuple(out if layout is None else BatchTensor.from_local(out, layout) for out, layout in pairs)


def grad_fn(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.grad_fn``: the node of the rows, or what stands for it."""
    node = metadata.of_the_rows(func, args, kwargs)
    layouts = getattr(node, "layouts_of_batches", None)
    return node if layouts is None else BatchNode(node, layouts)
