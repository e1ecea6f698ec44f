"""Losses inside a forward: everything before such a known reduction runs on rows, and the reduction is global.

When a forward was observed on batches, each call of a loss function noted which of its arguments were batches. When the
forward runs on rows, the same calls in the same order make batches of those arguments again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..errors import BatchError
from .layout import Layout, RowPlacement
from .observation import Observation
from .pending import Derived, PendingReduction, distinct, meet
from .pending_tensor import PendingTensor, stand_for
from .tensor import BatchTensor
from .versions import version
from .world import World


@dataclass(frozen=True, slots=True)
class Reduction:
    """One call of a loss function."""

    name: str
    where: Mapping[int | str, RowPlacement]  # of arguments, by position or name; empty if it reduces nothing


def noted(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], layout: Layout) -> Reduction | None:
    """Describe a call on batches; None if their rows are not those of a layout.

    Args:
        name: of the loss function.
        args: of the call.
        kwargs: of the call.
        layout: of the batch that the forward works on.
    """
    where: dict[int | str, RowPlacement] = {}
    given: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    for key, value in given:
        if not isinstance(value, BatchTensor):
            if isinstance(value, Tensor) and value.requires_grad:
                return None  # a weight that is trained: its gradient would have to be summed
            continue
        place = RowPlacement.among(layout, value._layout)
        if place is None:
            return None
        where[key] = place
    return Reduction(name, where)


def reduced(
    world: World, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a loss function, so that one inside a forward is that of all rows.

    Args:
        world: the ranks.
        name: of the function.
        function: gives the loss of all rows when it is given batches.
        args: for it.
        kwargs: for it.
    """
    if world.observation is not None:
        return _observed(world.observation, name, function, args, kwargs)
    if world.reductions is not None:
        with world.reducing(None) as reductions:  # what it calls is no loss of the script's
            return reductions.run(function, name, args, kwargs)
    return function(*args, **kwargs)


def _observed(
    seen: Observation, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    reduction = noted(name, args, kwargs, seen.layout) if seen.may_reduce else None
    if unseen := [function for function in seen.unknown if function not in seen.studied]:
        seen.tied(f"{name} is given what nothing is known about: {', '.join(unseen)}")
    if reduction is None:
        return function(*args, **kwargs)
    with seen.reducing():
        result = function(*args, **kwargs)
    if not isinstance(result, PendingTensor):
        if isinstance(result, BatchTensor) or not reduction.where:  # a loss per row, or one of weights
            reduction = Reduction(name, {})
        else:
            seen.tied(f"{name} looks at the whole batch")
    seen.reductions.append(reduction)
    return result


class ReductionsOfWhole:
    """The losses that one forward on batches computes, in their order."""

    def __init__(self) -> None:
        """Begin."""
        self.reductions: list[PendingReduction | Derived | None] = []  # None: a loss per row, say

    def run(self, function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute the next one."""
        result = function(*args, **kwargs)
        self.reductions.append(result._reduction if isinstance(result, PendingTensor) else None)
        return result

    def settle(self) -> None:
        """Sum them over the ranks."""
        left = [reduction for reduction in self.reductions if reduction is not None and reduction.is_open]
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
        self._layout = layout
        self._own = layout.counts[rank]
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
        lifted = [self._lifted(call, position, value) for position, value in enumerate(args)]
        result = function(*lifted, **{key: self._lifted(call, key, value) for key, value in kwargs.items()})
        known = self._of_whole.popleft() if self._of_whole else None
        if isinstance(known, PendingReduction) and isinstance(result, PendingTensor):
            self.parts.append((result.part, known.part))
            stand_for(result, known)
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
        if not isinstance(value, Tensor) or value.dim() <= dim or value.shape[dim] != self._own * place.size:
            raise BatchError(
                f"{call.name} in a forward was given {_described(value)} as argument {key!r}, where this rank's "
                f"{self._own} rows were expected. Compute the loss outside forward."
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
