"""Losses whose sum over the ranks nobody has asked for yet: 0-dim tensors that stand for reductions.

What becomes of one by numbers, and of several by addition, is pending as well: ``(loss_a + 0.1 * loss_b) / 2`` travels
with the gradients of its backward.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from .crossings import all_reduce, replicate
from .likeness import LikeTensor
from .loss_arithmetic import IN_PLACE, MULTIPLES, SUMS
from .nodes import named_after
from .pending import Derived, PendingReduction, distinct, meet
from .transforms import in_compiled_code, is_transformed, outside_transforms
from .versions import of_no_class
from .world import World

_new_full = Tensor.new_full  # below the door for the script's


class _Pending(torch.autograd.Function):
    """The crossing from partial sums to a mean: the gradient times N, over the divisor."""

    @staticmethod
    def forward(ctx: Any, partial: Tensor, reduction: PendingReduction) -> Tensor:
        ctx.reduction, ctx.dtype = reduction, partial.dtype
        if not partial.is_floating_point():
            return partial.new_empty(())
        return _new_full(partial, (), torch.nan, dtype=reduction.dtype)  # taken for a number below torch's functions

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        grad = replicate(grads[0])
        grad = grad if grad.dtype == ctx.dtype else grad.to(ctx.dtype)
        size, divisor = World.get().size, ctx.reduction.divisor
        if size & (size - 1) or isinstance(divisor, Tensor):
            return grad * size / divisor, None
        return grad / (divisor / size), None  # the same to the last bit, for a power of two


class PendingTensor(Tensor, metaclass=LikeTensor):
    """A 0-dim tensor whose value is summed when somebody looks at it."""

    _reduction: PendingReduction | Derived

    @property
    def part(self) -> Tensor:
        """What this rank gives to the sum."""
        return self._reduction.part

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Wait for the value, unless the function does not look at it."""
        kwargs = kwargs or {}
        if func is Tensor.backward:
            names = ("gradient", "retain_graph", "create_graph")
            arguments = {**dict(zip(names, args[1:], strict=False)), **kwargs}
            torch.autograd.backward(root_of(args[0]), arguments.pop("gradient", None), **arguments)
            return None
        if func in _BLIND:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        is_transformed_now = is_transformed()
        # In a trial what becomes of a loss is compared: one may divide it by the number of its rows.
        if not (kwargs or is_transformed_now or World.current is None or World.current.muted.get()):
            is_multiple = func in MULTIPLES and _is_multiple(*args)
            if is_multiple or (func in SUMS and _is_sum(func, *args)):
                return _derived(func, args, is_multiple)
        losses = [
            item
            for value in (*args, *kwargs.values())
            for item in (value if isinstance(value, (list, tuple)) else (value,))
            if isinstance(item, PendingTensor)
        ]
        if is_transformed_now:
            with outside_transforms():
                _wait_for_all(losses)
        else:
            _wait_for_all(losses)
        return func(*args, **kwargs)


_ON_GRADIENTS = ("requires_grad", "retains_grad")
_BLIND = {
    getattr(Tensor, name).__get__
    for name in ("shape", "dtype", "device", "layout", "grad_fn", "is_leaf", "ndim", "_base", *_ON_GRADIENTS)
} | {Tensor.numel, Tensor.size, Tensor.dim, Tensor.is_complex, Tensor.is_floating_point, Tensor.__dir__}


_DEEPEST = 64  # computations that wait for one sum


def _is_multiple(value: Any, *others: Any) -> bool:
    """Tell a loss and a number, or a scale such as ``GradScaler``'s."""
    if not isinstance(value, PendingTensor) or len(others) > 1 or value._reduction.depth >= _DEEPEST:
        return False
    if others and type(others[0]) is Tensor:
        scale = others[0]
        return scale.dim() == 0 and not scale.requires_grad and scale.dtype == value.dtype
    return not others or type(others[0]) in (int, float)


def _is_sum(func: Any, first: Any, *others: Any) -> bool:
    """Tell losses, numbers and 0-dim tensors that are added, but not to a tensor whose memory others may look at."""
    if len(others) != 1 or (func in IN_PLACE and type(first) is not PendingTensor):
        return False
    kind = None
    with torch._C.DisableTorchFunctionSubclass():
        for operand in (first, *others):
            its = type(operand)
            if its is int or its is float:
                continue
            if not (its is PendingTensor or its is Tensor) or operand.dim():
                return False
            if kind is not None and kind != (operand.dtype, operand.device):
                return False
            if its is PendingTensor and operand._reduction.depth >= _DEEPEST:
                return False
            kind = operand.dtype, operand.device
    return True


def _derived(func: Any, operands: tuple[Any, ...], is_multiple: bool) -> Tensor:
    computed = (MULTIPLES if is_multiple else SUMS)[func]
    reduction = Derived(computed, [_kept(operand) for operand in operands], is_multiple)
    with torch._C.DisableTorchFunctionSubclass():
        return stand_for(func(*operands), reduction)


def _kept(operand: Any) -> Any:
    if isinstance(operand, PendingTensor):
        return operand._reduction
    # A scale, say, may be written to before the sum arrives.
    return operand.detach().clone() if isinstance(operand, Tensor) else operand


def stand_for(value: Tensor, reduction: PendingReduction | Derived) -> Tensor:
    """Let a 0-dim tensor stand for a reduction."""
    value.__class__ = PendingTensor
    value._reduction = reduction  # type: ignore[attr-defined]
    return value


def pending_reduction(
    partial: Tensor,
    divisor: float | Tensor,
    count: Tensor | None = None,
    rows: Tensor | None = None,
    dtype: torch.dtype | None = None,
    node: str | None = None,
) -> Tensor:
    """Sum 0-dim partial results over the ranks and divide, once somebody looks.

    Args:
        partial: this rank's part of the sum.
        divisor: what to divide by, on all ranks the same; if there is a count, what that is when no row is left out.
        count: this rank's part of the divisor.
        rows: what it was computed of.
        dtype: of the result, if narrower than that of the sum.
        node: what one process's node in the graph is called, where it is not that of a sum or its mean.
    """
    world, partial = World.get(), of_no_class(partial)
    if (seen := world.observation) is not None:
        seen.note_whole_batch_use()
    reduction = PendingReduction(partial, count, divisor, dtype)
    if partial.is_complex() and partial.requires_grad:
        return all_reduce(partial) / divisor if count is None else all_reduce(partial) / all_reduce(count)
    if not partial.is_floating_point() and seen is None and not world.skips_collectives:
        return reduction.wait()  # a count, which torch's functions may take for a size without a word
    # The node, and not the rows: logits, say, which need not stay.
    reduction.of = rows.grad_fn if rows is not None and partial.requires_grad else None
    is_sum = isinstance(divisor, int) and divisor == 1
    value: Tensor = named_after(partial, _Pending, is_mean=not is_sum, instead=node)(partial, reduction)
    if in_compiled_code():  # it takes no tensor that changes its class
        value.detach().copy_(reduction.wait())
        return value
    if world.tape is not None:
        world.tape.summed(value, partial, divisor, count, rows, dtype, node)
    return stand_for(value, reduction)


def passed_on(value: PendingTensor, tied: Tensor) -> None:
    """Let a tensor stand for the same reduction, which shares the memory of another that stands for it."""
    stand_for(tied, value._reduction)
    value._reduction.leave_through(tied.grad_fn)


def _wait_for_all(losses: list[Any]) -> None:
    if len(losses) > 1:
        seen = None if World.current is None else World.current.observation
        with nullcontext() if seen is None else seen.paused():  # as in ``_settle``
            meet(distinct(loss._reduction.reductions for loss in losses))
    for loss in losses:
        if isinstance(loss, PendingTensor):  # given twice, it has arrived
            wait_for(loss)


def wait_for(value: Tensor) -> None:
    """Turn a pending tensor into the plain one that it stands for."""
    with torch._C.DisableTorchFunctionSubclass():
        is_inference = value.is_inference()
    if is_inference or torch.is_inference_mode_enabled():
        with torch.inference_mode(is_inference):
            _settle(value)
    else:
        _settle(value)


def _settle(value: Tensor) -> None:
    if World.current is not None and (seen := World.current.observation) is not None:
        with seen.paused():  # rows have the sum of a loss exactly as well
            _write(value)
    else:
        _write(value)


def _write(value: Tensor) -> None:
    with torch._C.DisableTorchFunctionSubclass():
        place = value.detach()
    # Nobody has saved the tensor for a backward: every function waits before it looks.
    value.__dict__["_reduction"].write_to(place)  # if that fails, it goes on waiting
    del value.__dict__["_reduction"]
    value.__class__ = Tensor


def root_of(value: Any) -> Any:
    """Give a plain tensor to start a backward from, which does not need the value."""
    if not isinstance(value, PendingTensor):
        return value
    with torch._C.DisableTorchFunctionSubclass():
        root = value.view(())
    root._reduction = value._reduction  # type: ignore[attr-defined]
    return root


def reduction_of(root: Any) -> PendingReduction | Derived | None:
    """The reduction that a backward's only root stands for, if its sum is not known yet."""
    found: PendingReduction | Derived | None = getattr(root, "_reduction", None) if isinstance(root, Tensor) else None
    return found if found is not None and found.is_open else None
