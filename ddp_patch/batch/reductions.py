"""Losses inside a forward: everything before such a known reduction runs on rows, and the reduction is global.

When a forward was observed on batches, each call of a loss function noted which of its arguments were batches. When the
forward runs on rows, the same calls in the same order make batches of those arguments again. Sums and means are such
calls as well; those within rows, and of what is no batch, are noted for the sake of their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..errors import BatchError
from .crossings import replicate
from .forms import to_local
from .layout import Layout
from .noted_reductions import SUMS, Reduction, has_sums
from .pending import Derived, PendingReduction, distinct, meet
from .pending_tensor import PendingTensor, stand_for, wait_for
from .tensor import BatchTensor
from .versions import version


@dataclass(frozen=True, slots=True)
class _Expected:
    """A sum of all rows that nobody had to wait for, and that of this rank's."""

    value: Tensor
    part: Tensor


class ReductionsOfWhole:
    """The losses that one forward on batches computes, in their order."""

    def __init__(self) -> None:
        """Begin."""
        self.reductions: list[PendingReduction | Derived | _Expected | None] = []  # None: a loss per row, say

    def run(self, function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute the next one."""
        result = function(*args, **kwargs)
        if isinstance(result, PendingTensor):
            self.reductions.append(result._reduction)
        elif name in SUMS and isinstance(args[0], BatchTensor) and not isinstance(result, BatchTensor):
            part = function(to_local(args[0]).detach(), *args[1:], **kwargs)
            self.reductions.append(_Expected(result.detach(), part))
        else:
            self.reductions.append(None)
        return result

    def settle(self) -> None:
        """Sum them over the ranks."""
        pending = [each for each in self.reductions if isinstance(each, (PendingReduction, Derived))]
        left = [reduction for reduction in pending if reduction.is_open]
        meet(distinct(reduction.reductions for reduction in left))
        for reduction in left:
            reduction.wait()


class Reductions:
    """The calls of loss functions that one forward on rows makes, in their order."""

    def __init__(
        self,
        calls: Sequence[Reduction],
        layout: Layout,
        rank: int,
        plain: Sequence[tuple[Tensor, Tensor]] = (),
        of_whole: ReductionsOfWhole | None = None,
    ) -> None:
        """Begin with the first.

        Args:
            calls: as they were noted.
            layout: of the batch that the forward works on.
            rank: whose rows it computes.
            plain: arguments that this rank has whole, each with its rows, a view of it.
            of_whole: in a trial, the same on batches: ranks do not meet, and what is computed with a loss is computed
                with that of all rows.
        """
        self._plain = [(whole, rows, version(rows)) for whole, rows in plain]
        self._left = deque(calls)
        self.have_sums = has_sums(calls)  # and not losses alone
        self._layout = layout
        self._count = layout.counts[rank]
        self._of_whole = None if of_whole is None else deque(of_whole.reductions)
        self.parts: list[tuple[Tensor, Tensor]] = []  # of sums, of these rows and of this rank's on batches

    def run(self, function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute the next one.

        Raises:
            BatchError: if it is not the one that was noted.
        """
        call = self._left.popleft() if self._left else None
        if call is None or call.name != name:
            raise BatchError(
                f"A forward calls {name} where it called {call.name if call else 'no loss'} when it was observed, so "
                "it cannot be told which rows the loss is of. Compute the loss outside forward."
            )
        expected = self._of_whole.popleft() if self._of_whole else None
        if not call.where:
            return function(*args, **kwargs)
        lifted = [self._lifted(call, position, value) for position, value in enumerate(args)]
        result = function(*lifted, **{key: self._lifted(call, key, value) for key, value in kwargs.items()})
        if isinstance(expected, PendingReduction) and isinstance(result, PendingTensor):
            self.parts.append((result.part, expected.part))
            stand_for(result, expected)
        elif isinstance(expected, _Expected):
            self.parts.append((function(args[0].detach(), *args[1:], **kwargs), expected.part))
            if not result.requires_grad:
                return expected.value.clone()
            result.detach().copy_(expected.value)
        if call.feeds_rows and result.requires_grad:
            if isinstance(result, PendingTensor):
                wait_for(result)
            return replicate(result)
        return result

    def check(self) -> None:
        """Tell at the end whether all of them were seen.

        Raises:
            BatchError: if not: code that was compiled before computed a loss without being seen.
        """
        if self._left:
            raise BatchError(
                f"A forward did not call {self._left[0].name}, as it did when it was observed: it takes another path, "
                "or torch.compile compiled it when it was called on the whole batch. Compute the loss outside forward, "
                "or call torch.compiler.reset() first."
            )

    def _lifted(self, call: Reduction, key: int | str, value: Any) -> Any:
        place = call.where.get(key)
        if place is None:
            return value
        dim = place.dim
        if not isinstance(value, Tensor) or value.dim() <= dim or value.shape[dim] != self._count * place.size:
            raise BatchError(
                f"{call.name} in a forward was given {_described(value)} as argument {key!r}, where this rank's "
                f"{self._count} rows were expected. Compute the loss outside forward."
            )
        batch = BatchTensor.from_local(value, place.of(self._layout))
        for whole, rows, seen in self._plain:
            is_view = value.data_ptr() == rows.data_ptr() and value.numel() == rows.numel() and version(rows) == seen
            if is_view and dim == 0 and whole.is_contiguous() and value.is_contiguous() and value.dtype == whole.dtype:
                # targets.view(-1): nothing has to be asked of other ranks.
                return BatchTensor.from_both(value, whole.view(batch.shape), batch._layout)
        return batch


def _described(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(type(value).__name__)
