"""Functions of which a script's author has said that they keep rows apart, or reduce them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import BatchError
from ..extending import Rule, batch_dim_of_result
from ..structure import leaves, leaves_below, map_leaves, nodes_of
from .crossings import all_reduce, replicate, shard
from .forms import to_local
from .layout import Layout
from .nodes import name_of, named_after
from .noted_reductions import reduced
from .pending_tensor import PendingTensor, pending_reduction, wait_for
from .tensor import RULES, BatchTensor
from .world import World

_calls = itertools.count(1)  # on batches, which all ranks make alike


def know(function: Any, rule: Rule) -> None:
    """Know a function of torch's that is called as it is."""
    RULES[function] = _of(rule)


def called(call: Callable[..., Any], rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a registered function.

    Args:
        call: what the script calls, which stands for the function.
        rule: what was said of the function.
        args: for it.
        kwargs: likewise.
    """
    world = World.current
    if world is None:
        return rule.function(*args, **kwargs)
    if call not in RULES:
        RULES[call] = _of(rule)
    function = functools.partial(_overridden, call, rule)
    return function(*args, **kwargs) if rule.kind == "rowwise" else reduced(world, rule.name, function, args, kwargs)


def _overridden(call: Callable[..., Any], rule: Rule, /, *args: Any, **kwargs: Any) -> Any:
    tensors = [leaf for _, leaf in leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if torch.overrides.has_torch_function(tensors):
        return torch.overrides.handle_torch_function(call, tensors, *args, **kwargs)
    if World.get().computes_rows():
        return _on_rows(rule, args, kwargs)
    return rule.function(*args, **kwargs)


def _on_rows(rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute rows, whose gradients are N times the true ones: a backward that clamps or normalises sees those."""
    world = World.get()
    inputs = map_leaves(lambda leaf: _scaled(leaf, world.size), (args, kwargs))
    input_nodes = nodes_of(inputs)  # which the function may write to
    before, world.sees_gradients = world.sees_gradients, True
    try:
        result = rule.function(*inputs[0], **inputs[1])
    finally:
        world.sees_gradients = before
    for other in leaves_below(nodes_of(result), input_nodes):
        raise BatchError(
            f"{rule.name} is registered, and uses a tensor of shape {tuple(other.shape)} that needs a gradient and is "
            "none of its arguments. Pass it as one: it gets the gradient of all rows then."
        )
    return map_leaves(lambda leaf: _scaled(leaf, 1 / world.size), result)


def _of(rule: Rule) -> Callable[..., Any]:
    wholes: set[Any] = set()  # arguments without dims that were seen to have no rows

    def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        layout, where = _layout(rule, args, kwargs), f"registered call {next(_calls)}, of {rule.name},"
        if layout is None:
            return NotImplemented
        if rule.dims is None:
            _refuse_unclear(rule, args, kwargs, layout, wholes)
        local = {
            place: _local_argument(value, rule.dim_of(place if isinstance(place, int) else -1, name), layout)
            for place, name, value in rule.arguments(args, kwargs)
        }
        with World.get().local_draws():  # noise of its own for each row, and the script's generators stay alike
            result = _on_rows(
                rule, tuple(local[place] for place in range(len(args))), {name: local[name] for name in kwargs}
            )
        return _reduced(rule, result, layout) if rule.kind != "rowwise" else _results(rule, result, layout, where)

    return run


def _layout(rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Layout | None:
    """How the rows of all batches are dealt; None if they do not lie side by side, or not where they were said to."""
    found: Layout | None = None
    for place, name, value in rule.arguments(args, kwargs):
        if not isinstance(value, BatchTensor):
            if any(isinstance(leaf, BatchTensor) for _, leaf in leaves(value)):
                return None
            continue
        dim = rule.dim_of(place if isinstance(place, int) else -1, name)
        if dim not in ("any", value._layout.dim) or (found is not None and not value._layout.lies_as(found)):
            return None
        found = value._layout
    return found


def _refuse_unclear(
    rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any], layout: Layout, wholes: set[Any]
) -> None:
    """Raise where a plain tensor may be meant to be cut as the batches beside it are."""
    for place, name, value in rule.arguments(args, kwargs):
        if not isinstance(value, Tensor) or isinstance(value, (BatchTensor, PendingTensor, nn.Parameter)):
            continue
        argument = place if name is None else name
        if layout.total not in (value.shape[:1] + value.shape[layout.dim : layout.dim + 1]):
            wholes.add(argument)
        elif layout.total > 1 and argument not in wholes:
            batches = {
                other if of is None else of: batch._layout.dim
                for other, of, batch in rule.arguments(args, kwargs)
                if isinstance(batch, BatchTensor)
            }
            raise BatchError(
                f"{rule.name} is registered without dims, and got a batch of {layout.total} rows beside a plain tensor "
                f"of shape {tuple(value.shape)}. Say whether that has rows as well: register it with "
                f"dims={ {**batches, argument: 0} }, or with dims={ {**batches, argument: None} } if it is whole."
            )


def _local_argument(value: Any, dim: Any, layout: Layout) -> Any:
    if isinstance(value, BatchTensor):
        return to_local(value)
    if isinstance(value, PendingTensor):
        wait_for(value)  # an extension reads its memory
    if not isinstance(value, Tensor):
        return value
    if isinstance(dim, int):
        return shard(value, layout.at(dim)) if value.shape[dim] == layout.total else replicate(value)
    return replicate(value)


class _Scaled(torch.autograd.Function):
    """The same tensor, whose gradient is multiplied on its way back."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] * ctx.factor, None


def _scaled(value: Any, factor: float) -> Any:
    if isinstance(value, Tensor) and value.requires_grad and torch.is_grad_enabled():
        return named_after(value, _Scaled)(value, factor)
    return value


def unfit(rule: Rule, result: Any) -> str:
    """Say what a rowwise function gave that cannot be put together from the ranks' rows; empty if there is nothing."""
    several = isinstance(result, (list, tuple, dict))
    for index, value in enumerate(result.values() if isinstance(result, dict) else result if several else [result]):
        if not isinstance(value, Tensor) and value is not None and batch_dim_of_result(rule, index) is not None:
            where = f"{type(value).__name__} as result {index}" if several else type(value).__name__
            return (
                f"{rule.name} was registered as rowwise, and gave {where}, of which each rank has its rows' alone. "
                "Give tensors (torch.as_tensor), or say out_dims=None for what has no rows and is the same everywhere."
            )
    return ""


def _results(rule: Rule, result: Any, layout: Layout, where: str) -> Any:
    count = layout.counts[World.get().rank]
    if found := unfit(rule, result):
        error = BatchError(found)
        World.get().check_all_failed(error, where)  # the others' may fit by chance
        raise error

    def dealt(index: int, value: Any) -> Any:
        dim = batch_dim_of_result(rule, index)
        if not isinstance(value, Tensor) or dim is None:
            return value
        if value.dim() <= dim or value.shape[dim] != count:
            error = BatchError(
                f"{rule.name} was registered as rowwise, and gave a tensor of shape {tuple(value.shape)} for {count} "
                "rows. Name the dimension of its rows (out_dims=...), or leave the registration out."
            )
            World.get().check_all_failed(error, where)
            raise error
        return BatchTensor.from_local(value, layout.at(dim))

    if isinstance(result, (list, tuple)):
        several = [dealt(index, value) for index, value in enumerate(result)]
        return type(result)(*several) if hasattr(result, "_fields") else type(result)(several)
    if isinstance(result, dict):
        return {key: dealt(index, value) for index, (key, value) in enumerate(result.items())}
    return dealt(0, result)


def _reduced(rule: Rule, result: Any, layout: Layout) -> Any:
    if not isinstance(result, Tensor):
        raise BatchError(
            f"{rule.name} was registered as a reduction, and gave {type(result).__name__}. A reduction gives a tensor."
        )
    # Half precision adds up in float, as in torch's own sums.
    is_narrow = result.dtype.is_floating_point and result.dtype.itemsize < 4
    part, node, dtype = result.float() if is_narrow else result, name_of(result), result.dtype
    if rule.kind == "sum":
        return all_reduce(part, 1, dtype) if part.dim() else pending_reduction(part, 1, dtype=dtype)
    part = part * layout.counts[World.get().rank]
    if part.dim():
        return all_reduce(part, layout.total, dtype, node)
    return pending_reduction(part, layout.total, dtype=dtype, node=node)
