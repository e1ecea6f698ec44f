"""A loss whose sum over the ranks nobody has asked for yet.

Summing it between forward and backward would be a second point in every step where the ranks wait for the slowest. So
it travels with the last bucket of gradients, if the backward that starts from it sends one, or by itself when somebody
looks at it. From then on it is a plain tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from .crossings import spread
from .world import World


class Promise:
    """A sum over the ranks, and the mean that it becomes."""

    def __init__(self, partial: Tensor, count: Tensor | None, divisor: float) -> None:
        """Keep this rank's part.

        Args:
            partial: what is summed, 0-dim.
            count: this rank's part of what the sum is divided by, 0-dim; None if the divisor is known.
            divisor: the known one, or what the count is if no row was left out.
        """
        parts = [partial.detach()] if count is None else [partial.detach(), count.detach().to(partial.dtype)]
        self.part = torch.stack(parts)
        self.expected = divisor
        self.rows: Tensor | None = None  # what it was computed of, until it is summed
        self.assumed = False  # a backward went on with the expected divisor
        self.tie: Any = None  # the node that it left a model through
        self._divisor: float | None = divisor if count is None else None
        self._sum: Tensor | None = None

    def arrived(self, total: Tensor) -> None:
        """Take the sum of all ranks' parts, which travelled with something else."""
        self._sum = total
        self.let_go()

    def let_go(self) -> None:
        """Keep the graph no longer."""
        self.rows = self.tie = None

    def wait(self) -> Tensor:
        """Give the value; one all_reduce, if it did not arrive by other means."""
        if self._sum is None and World.get().alone:
            return self.part[0] / self.expected
        if self._sum is None:
            self.arrived(World.get().all_reduce(self.part))
        assert self._sum is not None
        divisor = self._sum[1] if self._divisor is None else self._divisor
        return self._sum[0] if isinstance(divisor, int) and divisor == 1 else self._sum[0] / divisor

    @property
    def divisor(self) -> float | Tensor:
        """What the sum is divided by: the expected value while a backward relies on it, the true one otherwise."""
        if self._divisor is not None:
            return self._divisor
        if self.assumed:
            return self.expected
        self.wait()
        assert self._sum is not None
        return self._sum[1]

    @property
    def source(self) -> Any:
        """The node that a backward from it comes by, before it comes to any parameter."""
        if self.tie is not None:
            return self.tie
        return None if self.rows is None else self.rows.grad_fn

    @property
    def is_open(self) -> bool:
        """Tell whether the sum is not known yet."""
        return self._sum is None

    @property
    def has_count(self) -> bool:
        """Tell whether the divisor is summed over the ranks as well."""
        return self._divisor is None


class _Promised(torch.autograd.Function):
    """The crossing of DESIGN.md section 3, from partial sums to a mean: the gradient times N, over the divisor."""

    @staticmethod
    def forward(ctx: Any, partial: Tensor, promise: Promise) -> Tensor:
        ctx.promise = promise
        if not partial.is_floating_point():
            return partial.new_empty(())
        return partial.new_full((), torch.nan)  # what code below torch's functions takes for a number

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return spread(grads[0]) * World.get().size / ctx.promise.divisor, None


_promised: Callable[[Tensor, Promise], Tensor] = _Promised.apply


class PromisedTensor(Tensor):
    """A 0-dim tensor whose value is summed when somebody looks at it."""

    _promise: Promise

    @property
    def part(self) -> Tensor:
        """What this rank gives to the sum."""
        return self._promise.part

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Wait for the value, unless the function does not look at it."""
        kwargs = kwargs or {}
        if func is Tensor.backward:
            names = ("gradient", "retain_graph", "create_graph")
            given = {**dict(zip(names, args[1:], strict=False)), **kwargs}
            torch.autograd.backward(root_of(args[0]), given.pop("gradient", None), **given)
            return None
        if func in _BLIND:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        for value in (*args, *kwargs.values()):
            for item in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(item, PromisedTensor):
                    arrive(item)
        return func(*args, **kwargs)


_BLIND = {
    getattr(Tensor, name).__get__
    for name in ("requires_grad", "shape", "dtype", "device", "layout", "grad_fn", "is_leaf", "ndim")
} | {Tensor.numel, Tensor.size, Tensor.dim, Tensor.is_complex, Tensor.is_floating_point}


def promised(partial: Tensor, divisor: float, count: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
    """Sum 0-dim partial results over the ranks and divide, once somebody looks.

    Args:
        partial: this rank's part of the sum.
        divisor: what to divide by, on all ranks the same; if there is a count, what that is when no row is left out.
        count: this rank's part of the divisor.
        rows: what it was computed of.
    """
    seen = World.get().observation
    if seen is not None:
        seen.crossed()
    promise = Promise(partial, count, divisor)
    if not partial.is_floating_point() and seen is None and not World.get().alone:
        return promise.wait()  # a count, which torch's functions may take for a size without a word
    promise.rows = rows
    value = _promised(partial, promise)
    if _in_compiled_code():
        value.detach().copy_(promise.wait())
        return value
    value.__class__ = PromisedTensor
    value._promise = promise  # type: ignore[attr-defined]
    return value


def _in_compiled_code() -> bool:
    """Tell whether TorchDynamo (torch 2.13) goes on with what comes back: it takes no tensor that changes its class."""
    return "torch._dynamo" in sys.modules and callable(torch._C._dynamo.eval_frame.get_eval_frame_callback())


def passed_on(value: PromisedTensor, tied: Tensor) -> None:
    """Let a tensor stand for the same promise, which shares the memory of another that stands for it."""
    tied.__class__ = PromisedTensor
    promise: Promise = value._promise
    tied._promise = promise  # type: ignore[attr-defined]
    promise.tie = tied.grad_fn


def arrive(value: Tensor) -> None:
    """Turn a promise into the plain tensor it stands for."""
    promise: Promise = value.__dict__.pop("_promise")
    value.__class__ = Tensor
    seen = None if World.current is None else World.current.observation
    with torch.inference_mode(value.is_inference()), nullcontext() if seen is None else seen.paused():
        # Nobody has saved the tensor for a backward: every function waits before it looks.
        value.detach().copy_(promise.wait())


def root_of(value: Any) -> Any:
    """Give a plain tensor to start a backward from, which does not need the value."""
    if not isinstance(value, PromisedTensor):
        return value
    with torch._C.DisableTorchFunctionSubclass():
        root = value.view(())
    root._promise = value._promise  # type: ignore[attr-defined]
    return root


def promise_of(root: Any) -> Promise | None:
    """The promise that a backward's only root stands for, if its sum is not known yet."""
    promise: Promise | None = getattr(root, "_promise", None) if isinstance(root, Tensor) else None
    return promise if promise is not None and promise.is_open else None
