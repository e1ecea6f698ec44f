"""Losses, gradients and optimizer steps, as the script sees them; and the end of a run that has taken enough steps."""

from __future__ import annotations

import functools
import gc
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ...ledger import script_line
from .models import Models
from .record import Record


class Enough(SystemExit):
    """The script has taken as many steps as are compared."""


class Steps:
    """Writes down what is back-propagated and what optimizers get.

    Under ddp_patch every rank comes here at the same points and looks at the same values, as a script that calls
    ``loss.item()`` and reads ``.grad`` would: a collective that looking takes is joined by all.
    """

    def __init__(self, record: Record, models: Models, limit: int | None, local: bool) -> None:
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
        register_optimizer_step_pre_hook(self._before)
        register_optimizer_step_post_hook(self._after)

    def finish(self, went_well: bool) -> None:
        """Write down what is left, when the script has ended."""
        self._settle(may_wait=went_well)
        if not self._models.roots and not self._models.loose:
            leaves = [found for found in _with_gradients() if found.is_leaf]
            self._models.name(leaves)

    # --- losses -----------------------------------------------------------------------------------------------------

    def _around(self, wrapped: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(wrapped)
        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            if self._depth:
                return wrapped(tensors, grad_tensors, *args, **kwargs)
            self._settle()
            self._backwards += 1
            self._record.age = max(self._record.step, self._backwards - 1)
            if self._limit is not None and self._backwards > self._limit and not self._kept and not _steps_later():
                self._end()
            line = script_line()
            roots = tensors if isinstance(tensors, (list, tuple)) else [tensors]
            given = grad_tensors if isinstance(grad_tensors, (list, tuple)) else [grad_tensors] * len(roots)
            self._open.extend((line, root, weight) for root, weight in zip(roots, given, strict=False))
            self._depth += 1
            try:
                return wrapped(tensors, grad_tensors, *args, **kwargs)
            finally:
                self._depth -= 1

        return backward

    def _settle(self, may_wait: bool = True) -> None:
        held, self._open = self._open, []
        for line, root, weight in held:
            promise = getattr(root, "_promise", None)  # of the sum of all ranks' losses
            if promise is not None and promise.is_open and not may_wait:
                continue
            value = (root if promise is None else promise.wait()).detach()
            if weight is not None:
                value = (value * weight.detach()).sum()
            dtype = str(root.dtype).removeprefix("torch.")
            self._record.event("loss", line=line, value=_number(value.sum()), dtype=dtype)

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
                line=getattr(optimizer, "_ddp_patch_line", script_line()),
                names=names,
                sizes=[p.numel() for p in parameters],
                dtypes=sorted({str(p.dtype).removeprefix("torch.") for p in parameters}),
                options=[_plain(group) for group in optimizer.param_groups],
            )
        norms = _norms([p.grad for p in parameters])
        squares = [norm * norm for norm in norms if norm is not None]
        self._record.event(
            "step",
            number=number,
            line=script_line(),
            norm=math.sqrt(sum(squares)) if squares else None,
            norms=norms,
            rates=[float(group.get("lr", 0.0)) for group in optimizer.param_groups],
            **({"buffers": self._models.buffers()} if self._local else {}),
        )

    def _end(self) -> None:
        self.is_enough = True
        raise Enough(0)


def _has_closure(args: Any, kwargs: Any) -> bool:
    return any(callable(value) for value in (*args[1:], *kwargs.values()))


def _steps_later() -> bool:
    """Tell whether there is an optimizer, which may have steps to come."""
    return any(isinstance(candidate, Optimizer) for candidate in _of(Optimizer))


def _of(wanted: type) -> Iterable[Any]:
    known: dict[type, bool] = {}
    for candidate in gc.get_objects():
        kind = type(candidate)
        if kind not in known:
            known[kind] = issubclass(kind, wanted)
        if known[kind]:
            yield candidate


def _with_gradients() -> list[Tensor]:
    """Find what a script trains by hand."""
    return [found for found in _of(torch.nn.Parameter) if found.grad is not None]


def _norms(grads: list[Tensor | None]) -> list[float | None]:
    """Measure gradients; those of one device are waited for once."""
    measured: dict[Any, list[tuple[int, Tensor]]] = {}
    for place, grad in enumerate(grads):
        if grad is not None:
            values = grad.detach().coalesce().values() if grad.is_sparse else grad.detach()
            values = values.abs() if values.is_complex() else values
            norm = torch.linalg.vector_norm(values, dtype=torch.float64)
            measured.setdefault(norm.device, []).append((place, norm))
    norms: list[float | None] = [None] * len(grads)
    for found in measured.values():
        for (place, _), value in zip(found, torch.stack([norm for _, norm in found]).tolist(), strict=True):
            norms[place] = value
    return norms


def _number(value: Tensor) -> float:
    return float(value.real.double() if value.is_complex() else value.double())


def _plain(group: dict[str, Any]) -> dict[str, Any]:
    options = {name: value for name, value in group.items() if name != "params"}
    return {name: value for name, value in options.items() if isinstance(value, (int, float, bool, str, tuple, list))}
