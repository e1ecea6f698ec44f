"""Losses, gradients and optimizer steps, as the script sees them; and the end of a run that has taken enough steps."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ...ledger import script_line
from .gradients import norms_of, number, plain, with_gradients
from .made import line_of
from .models import TrainedModels
from .record import Record


class Enough(SystemExit):
    """The script has taken as many steps as are compared."""


class Steps:
    """Writes down what is back-propagated and what optimizers get.

    Under ddp_patch every rank comes here at the same points and looks at the same values, as a script that calls
    ``loss.item()`` and reads ``.grad`` would: a collective that looking takes is joined by all.
    """

    def __init__(self, record: Record, models: TrainedModels, limit: int | None, local: bool) -> None:
        """Prepare.

        Args:
            record: of this rank.
            models: that are found by what is trained.
            limit: of steps; the next one ends the script.
            local: the ranks hold values of their own: note those that should be equal.
        """
        self.is_enough = False
        self._record = record
        self._models = models
        self._limit = limit
        self._local = local
        self._open: list[tuple[str, Any, Any]] = []  # losses whose values are not read yet
        self._optimizers: dict[int, int] = {}
        self._kept: list[Optimizer] = []
        self._backwards = 0
        self._depth = 0

    def install(self) -> None:
        """Look on from now on."""
        torch.autograd.backward = self._around(torch.autograd.backward)
        self._replace_grad()
        self._note_made()
        register_optimizer_step_pre_hook(self._before)
        register_optimizer_step_post_hook(self._after)

    def finish(self, went_well: bool) -> None:
        """Write down what is left, when the script has ended."""
        self._settle(may_wait=went_well)
        if self._models.by_hand:
            self._hold()
            self._note_weights("")
        if not went_well:
            self._models.leave_batches()

    # --- losses -----------------------------------------------------------------------------------------------------

    def _around(self, wrapped: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(wrapped)
        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            if self._depth:
                return wrapped(tensors, grad_tensors, *args, **kwargs)
            line = script_line()
            self._begin(line)
            roots = tensors if isinstance(tensors, (list, tuple)) else [tensors]
            weights = grad_tensors if isinstance(grad_tensors, (list, tuple)) else [grad_tensors] * len(roots)
            self._open.extend((line, root, weight) for root, weight in zip(roots, weights, strict=False))
            self._depth += 1
            try:
                return wrapped(tensors, grad_tensors, *args, **kwargs)
            finally:
                self._depth -= 1

        return backward

    def _replace_grad(self) -> None:
        from ...batch.rules import table  # noqa: F401, PLC0415 — fills RULES
        from ...batch.tensor import RULES  # noqa: PLC0415

        wrapped = torch.autograd.grad
        torch.autograd.grad = noted = self._around_grad(wrapped)
        # torch looks itself up by the name, and ddp_patch's rule for it is found by identity.
        RULES[noted] = RULES[wrapped]

    def _around_grad(self, wrapped: Callable[..., Any]) -> Callable[..., Any]:
        """Without an optimizer, ``torch.autograd.grad(loss, weights)`` is what a step begins with."""

        @functools.wraps(wrapped)
        def grad(outputs: Any, inputs: Any, grad_outputs: Any = None, *args: Any, **kwargs: Any) -> Any:
            roots = outputs if isinstance(outputs, (list, tuple)) else [outputs]
            wanted = inputs if isinstance(inputs, (list, tuple)) else [inputs]
            trained = [each for each in wanted if type(each) in (Tensor, torch.nn.Parameter) and each.is_leaf]
            is_step = self._models.by_hand and len(trained) == len(wanted) and not kwargs.get("create_graph")
            if self._depth or not is_step or grad_outputs is not None or any(root.dim() for root in roots):
                return wrapped(outputs, inputs, grad_outputs, *args, **kwargs)
            line = script_line()
            self._models.name_made()
            self._models.name(trained)
            self._begin(line)
            self._open.extend((line, root, None) for root in roots)
            self._depth += 1
            try:
                return wrapped(outputs, inputs, grad_outputs, *args, **kwargs)
            finally:
                self._depth -= 1

        return grad

    def _begin(self, line: str) -> None:
        """Begin a backward, which without an optimizer is a step."""
        self._settle()
        if self._models.by_hand:
            self._record.step = self._backwards
            self._note_weights(line)
        self._backwards += 1
        self._record.age = max(self._record.step, self._backwards - 1)
        if self._limit is not None and self._backwards > self._limit and self._models.by_hand:
            self._end()

    def _settle(self, may_wait: bool = True) -> None:
        pending, self._open = self._open, []
        for line, root, weight in pending:
            reduction = getattr(root, "_reduction", None)  # of the sum of all ranks' losses
            if reduction is not None and reduction.is_open and not may_wait:
                continue
            value = (root if reduction is None else reduction.wait()).detach()
            if weight is not None:
                value = (value * weight.detach()).sum()
            dtype = str(root.dtype).removeprefix("torch.")
            self._record.event("loss", line=line, value=number(value.sum()), dtype=dtype)

    # --- steps ------------------------------------------------------------------------------------------------------

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._settle()
        if self._limit is not None and self._record.step >= self._limit:
            self._end()
        if not _has_closure(args, kwargs):
            self._note(optimizer)

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if _has_closure(args, kwargs):
            self._settle()
            self._note(optimizer)
        self._record.step += 1
        self._record.age = max(self._record.step, self._backwards)

    def _note(self, optimizer: Optimizer) -> None:
        number = self._optimizers.get(id(optimizer))
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        names = self._models.name(parameters)
        if number is None:
            number = self._optimizers[id(optimizer)] = len(self._kept)
            self._kept.append(optimizer)
            self._record.event(
                "optimizer",
                number=number,
                type=type(optimizer).__name__,
                line=line_of(optimizer) or script_line(),
                names=names,
                sizes=[p.numel() for p in parameters],
                dtypes=sorted({str(p.dtype).removeprefix("torch.") for p in parameters}),
                options=[plain(group) for group in optimizer.param_groups],
            )
        norms = norms_of([p.grad for p in parameters])
        squares = [norm * norm for norm in norms if norm is not None]
        self._record.event(
            "step",
            number=number,
            line=script_line(),
            norm=math.sqrt(sum(squares)) if squares else None,
            norms=norms,
            evaluating=self._models.evaluating(),
            rates=[float(group.get("lr") or 0.0) for group in optimizer.param_groups],
            **({"buffers": self._models.buffers()} if self._local else {}),
        )

    # --- without an optimizer ---------------------------------------------------------------------------------------

    def _note_made(self) -> None:
        models = self._models

        def noted(owner: Any, note: Callable[[Any], None]) -> None:
            wrapped = owner.__init__

            @functools.wraps(wrapped)
            def init(made: Any, *args: Any, **kwargs: Any) -> None:
                note(made)
                wrapped(made, *args, **kwargs)

            owner.__init__ = init

        noted(torch.nn.Module, models.made)
        noted(Optimizer, lambda made: models.optimized())

    def _hold(self) -> None:
        """Name what may be trained: parameters of modules, and tensors that a backward left gradients in."""
        self._models.name_made()
        self._models.name(with_gradients(known=self._models.named))

    def _note_weights(self, line: str) -> None:
        """Measure what the script has made of its weights since the backward before."""
        if self._backwards == 1:
            self._hold()
        weights = self._models.weights()
        if self._backwards and weights:
            self._record.event(
                "weights", line=line, norms=dict(zip(weights, norms_of([*weights.values()]), strict=True))
            )

    def _end(self) -> None:
        self.is_enough = True
        raise Enough(0)


def _has_closure(args: Any, kwargs: Any) -> bool:
    return any(callable(value) for value in (*args[1:], *kwargs.values()))
