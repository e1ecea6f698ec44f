"""Loss scaling for ``accelerate launch --mixed_precision fp16``, where the script has no GradScaler of its own.

As in torch.amp.GradScaler, with its defaults: losses are scaled up before a backward, and a step whose gradients
overflowed is left out. Gradients are scaled down as soon as the backward has ended, and for hooks on tensors while it
runs, so the script, its clipping and its logging see true ones. Factors are powers of two: nothing is rounded.
A backward with ``create_graph`` is not scaled, nor is ``torch.autograd.grad``: what their graphs give would be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ..ledger import Ledger
from ..structure import leaves_below
from .grad_watch import grad_of, set_grad

_GROWTH_INTERVAL = 2000  # steps without overflow after which the scale is doubled (torch.amp.GradScaler)


class LossScale:
    """Scales the backwards of a session."""

    def __init__(self, ledger: Ledger) -> None:
        """Start with torch's initial scale, and idle until a model computes in half precision by our doing."""
        self.active = False
        self.value = 65536.0
        self._running = 1.0  # what the gradients of the backward that runs are too large by
        self._ledger = ledger
        self._good_steps = 0
        self._leaves: list[Tensor] = []  # that the running backward accumulates into
        self._keeping: Any = WeakIdKeyDictionary()  # what retain_grad was called on
        self._kept: list[tuple[Tensor, Tensor | None]] = []  # of those, what they had when it began
        self._withheld: list[tuple[Tensor, Tensor]] = []

    def activate(self) -> None:
        """Scale from now on."""
        self.active = True

    def begin(self, roots: Any, vectors: Any, inputs: Iterable[Tensor] | None) -> Any:
        """Scale a backward that is about to begin; gradients it adds to are scaled for the time being.

        Args:
            roots: of the backward, a tensor or several.
            vectors: the script's ``grad_tensors``.
            inputs: the only leaves that get gradients, if the script names them.

        Returns:
            the ``grad_tensors`` to use.
        """
        roots = list(roots) if isinstance(roots, (list, tuple)) else [roots]
        grad_tensors = list(vectors) if isinstance(vectors, (list, tuple)) else [vectors] * len(roots)
        leaves = _leaves_below(roots) if inputs is None else inputs
        self._leaves = [leaf for leaf in leaves if leaf not in self._keeping]
        self._multiply(self.value)
        self._kept = [(tensor, grad_of(tensor)) for tensor in self._keeping]
        for tensor, _ in self._kept:
            set_grad(tensor, None)
        self._running = self.value
        return [
            vector * self.value
            if vector is not None
            else torch.full_like(root, self.value, requires_grad=False)
            if root.numel() == 1
            else None  # torch's own error
            for root, vector in zip(roots, grad_tensors, strict=True)
        ]

    def end(self) -> None:
        """Scale the gradients of a backward down."""
        self._multiply(1 / self._running)
        for tensor, before in self._kept:
            grad = grad_of(tensor)
            if grad is not None:
                grad = grad / self._running
                set_grad(tensor, grad if before is None else before + grad)
            else:
                set_grad(tensor, before)
        self._leaves, self._kept, self._running = [], [], 1.0

    # --- who looks while one runs -----------------------------------------------------------------------------------

    def true(self, grad: Tensor) -> Tensor:
        """Give a gradient of the running backward at its true size."""
        return grad if self._running == 1 else grad / self._running

    def seen_by(self, hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Give a hook on a tensor that calls the script's with true gradients; what overflowed it cannot hide."""

        def on(grad: Any) -> Any:
            if grad is None or not self.active:
                return hook(grad)
            true = grad / self._running
            changed = hook(true)
            changed = (true if changed is None else changed) * self._running
            return changed if grad.is_sparse else torch.where(grad.isfinite(), changed, grad)

        return on

    @contextmanager
    def true_on(self, leaf: Tensor) -> Iterator[None]:
        """Surround what looks at the gradient of a leaf while a backward runs."""
        if self._running == 1 or leaf.grad is None:
            yield
            return
        leaf.grad.div_(self._running)
        try:
            yield
        finally:
            if leaf.grad is not None:
                leaf.grad.mul_(self._running)

    def keeps(self, tensor: Tensor) -> None:
        """Note that a tensor keeps its gradient, though it is no leaf."""
        self._keeping[tensor] = True

    # --- optimizers -------------------------------------------------------------------------------------------------

    def before_step(self, optimizer: Any) -> None:
        """Withhold gradients that overflowed: optimizers leave out parameters without one."""
        pairs = [
            (parameter, grad)
            for group in optimizer.param_groups
            for parameter in group["params"]
            if (grad := grad_of(parameter)) is not None
        ]
        if not pairs or _are_finite([grad for _, grad in pairs]):
            self._good_steps += bool(pairs)
            if self._good_steps == _GROWTH_INTERVAL:
                self.value, self._good_steps = self.value * 2, 0
            return
        self.value, self._good_steps = self.value / 2, 0
        self._ledger.overflows += 1
        self._withheld = pairs
        for parameter, _ in pairs:
            set_grad(parameter, None)

    def after_step(self) -> None:
        """Give withheld gradients back, for the script to zero."""
        for parameter, grad in self._withheld:
            set_grad(parameter, grad)
        self._withheld = []

    def _multiply(self, factor: float) -> None:
        grads = [grad for leaf in self._leaves if (grad := grad_of(leaf)) is not None]
        if grads and math.isfinite(factor):
            with torch.no_grad():
                torch._foreach_mul_(grads, factor)


def _are_finite(grads: list[Tensor]) -> bool:
    """Tell whether no gradient overflowed; each device is waited for once."""
    found: dict[torch.device, list[Tensor]] = {}
    for grad in grads:
        found.setdefault(grad.device, []).append(torch.isfinite(_values(grad)).all())
    return all(bool(torch.stack(flags).all()) for flags in found.values())


def _values(grad: Tensor) -> Tensor:
    return grad.coalesce().values() if grad.is_sparse else grad


def _leaves_below(roots: list[Tensor]) -> Iterator[Tensor]:
    nodes = [root.grad_fn for root in roots if root.grad_fn is not None]
    yield from (root for root in roots if root.is_leaf)
    yield from leaves_below(nodes)
