"""Calls of losses and sums, as a forward that is observed on batches makes them: which arguments are batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ..structure import leaves
from .layout import Layout, RowPlacement
from .observation import Observation
from .pending_tensor import PendingTensor
from .tensor import BatchTensor
from .world import World

SUMS = frozenset({"sum", "mean"})


@dataclass(frozen=True, slots=True)
class Reduction:
    """One call of a loss function, or of a sum."""

    name: str
    where: Mapping[int | str, RowPlacement]  # of arguments, by position or name; empty if it reduces nothing
    feeds_rows: bool = False  # what comes of it, or of another one of its forward, is trained by rows again


def losses_of(seen: Observation) -> tuple[Reduction, ...]:
    """Give what a forward on rows has to compute for all rows; sums only if some are of more than this rank's rows.

    Args:
        seen: of a call on batches.
    """
    calls: list[Reduction] = seen.reductions
    if not any(call.where for call in calls if call.name in SUMS):
        calls = [call for call in calls if call.name not in SUMS]
    return tuple(replace(call, feeds_rows=call.feeds_rows or seen.feeds_rows) for call in calls)


def sum_returned(seen: Observation, result: Any) -> str:
    """Say why a forward stays on batches whose script would see a part of a sum's gradient; nothing if none would.

    Args:
        seen: of the call.
        result: of the call.
    """
    if not seen.feeds_rows:
        return ""
    # Each rank asks for itself, and one that made a batch's rows for that would have another graph than the others.
    plain = [leaf for _, leaf in leaves(result) if isinstance(leaf, Tensor) and not isinstance(leaf, BatchTensor)]
    if any(leaf.grad_fn in seen.sums for leaf in plain if leaf.grad_fn is not None):
        return "it returns a sum over the batch that its rows meet. Return what is computed of it"
    return ""


def has_sums(calls: Sequence[Reduction]) -> bool:
    """Tell whether there are sums of rows, beside losses, among the calls of a forward."""
    return any(call.name in SUMS for call in calls)


def noted(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], layout: Layout) -> Reduction | None:
    """Describe a call on batches; None if their rows are not those of a layout.

    Args:
        name: of the loss function.
        args: of the call.
        kwargs: of the call.
        layout: of the batch that the forward works on.
    """
    where: dict[int | str, RowPlacement] = {}
    arguments: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    for key, value in arguments:
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
        observed = _observed_sum if name in SUMS else _observed
        return observed(world.observation, name, function, args, kwargs)
    if world.reductions is not None:
        with world.reducing(None) as reductions:  # what it calls is no loss of the script's
            return reductions.run(function, name, args, kwargs)
    return function(*args, **kwargs)


def _observed(
    seen: Observation, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    reduction = noted(name, args, kwargs, seen.layout) if seen.may_reduce else None
    if unseen := [function for function in seen.unknown_functions if function not in seen.rowwise_functions]:
        seen.forbid_split(f"{name} is given what nothing is known about: {', '.join(unseen)}")
    if reduction is None:
        return function(*args, **kwargs)
    with seen.reducing():
        result = function(*args, **kwargs)
    if not isinstance(result, PendingTensor):
        if isinstance(result, BatchTensor) or not reduction.where:  # a loss per row, or one of weights
            reduction = Reduction(name, {})
        else:
            seen.forbid_split(f"{name} looks at the whole batch")
    else:
        reduction = replace(reduction, feeds_rows=not result.requires_grad)
        seen.sums.append(result.grad_fn)
    seen.reductions.append(reduction)
    return result


def _observed_sum(
    seen: Observation, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if not seen.may_reduce or seen.is_paused:
        return function(*args, **kwargs)
    batch, where = args[0], None
    if isinstance(batch, BatchTensor):
        where = RowPlacement.among(seen.layout, batch._layout)
    if where is None or [function for function in seen.unknown_functions if function not in seen.rowwise_functions]:
        result = function(*args, **kwargs)
    else:
        with seen.reducing():
            result = function(*args, **kwargs)
    if where is not None and isinstance(result, BatchTensor):
        where = None
    if where is None:
        seen.reductions.append(Reduction(name, {}))
        return result
    seen.sums.append(result.grad_fn)
    # Of what is frozen now nobody sees whether it is trained by rows; it may be trained later.
    seen.reductions.append(Reduction(name, {0: where}, not result.requires_grad))
    return result
