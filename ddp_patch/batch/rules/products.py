"""Products and distances of two operands: local as long as rows are not summed over and never meet other rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..crossings import replicate, shard
from ..forms import to_local
from ..layout import Layout
from ..tensor import BatchTensor, Rule
from . import contractions
from .elementwise import broadcast_dims, common_layout, cutter
from .networks import aligned


def product_layout(left: Tensor, right: Tensor) -> Layout | None:
    """Find the rows in ``left @ right``; None where they are summed over, or every row meets every other.

    Dimensions are counted from the right, as matmul broadcasts: 1 and 2 are the matrices', 3 and on are stacked.
    """
    batches = [operand for operand in (left, right) if isinstance(operand, BatchTensor)]
    if not batches or left.dim() == 0 or right.dim() == 0:
        return None
    layout, back = batches[0]._layout, _back(batches[0])
    if len(batches) == 2:
        if back < 3 or _back(batches[1]) != back or not batches[1]._layout.lies_as(layout):
            return None
    elif (back < 3 and (batches[0] is left) != (back == 2)) or (batches[0] is right and right.dim() == 1):
        return None  # summed over
    if back >= 3 and any(t.dim() >= back and t.shape[-back] not in (1, layout.total) for t in (left, right)):
        return None
    # A vector on the left leaves no dimension of its own before the columns of the right.
    dropped = left.dim() == 1 and back == 1
    return layout.at(max(left.dim(), right.dim()) - back - dropped)


def _back(batch: BatchTensor) -> int:
    return batch.dim() - batch._layout.dim


def _factors(left: Tensor, right: Tensor) -> list[Tensor]:
    """This rank's part of both operands, which ``product_layout`` has accepted."""
    batch = left if isinstance(left, BatchTensor) else right
    assert isinstance(batch, BatchTensor)
    back = _back(batch)

    def localized(operand: Tensor) -> Tensor:
        if isinstance(operand, BatchTensor):
            return to_local(operand)
        if back >= 3 and operand.dim() >= back and operand.shape[-back] == batch._layout.total:
            return shard(operand, batch._layout.at(operand.dim() - back))
        return replicate(operand)

    return [localized(left), localized(right)]


def product(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x @ w`` with a global ``w``, ``adjacency @ x``, ``q @ k.mT``; ``x.T @ y`` is summed, ``z @ z.T`` gathers."""
    if len(args) != 2 or kwargs or not all(isinstance(arg, Tensor) for arg in args):
        return NotImplemented
    layout = product_layout(*args)
    if layout is None:
        return contractions.product(func, *args)
    return BatchTensor.from_local(func(*_factors(*args)), layout)


def stacked(rule: Rule) -> Rule:
    """Make the rule of ``bmm`` and ``baddbmm``, which do not broadcast, though a rank with one row would let them."""

    def strict(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        left, right = args[-2:] if len(args) in (2, 3) else (None, None)
        if not (isinstance(left, Tensor) and isinstance(right, Tensor) and left.shape[:1] == right.shape[:1]):
            return NotImplemented
        return rule(func, args, kwargs)

    return strict


def added_product(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.addmm(bias, x, w)``: a product and something that broadcasts against it."""
    if len(args) != 3 or not set(kwargs) <= {"beta", "alpha"} or not all(isinstance(arg, Tensor) for arg in args):
        return NotImplemented
    layout = product_layout(args[1], args[2])
    if layout is None:
        return NotImplemented
    factors = _factors(args[1], args[2])
    dims = max(args[1].dim(), args[2].dim()) - (args[2].dim() == 1)
    added, back = args[0], dims - layout.dim
    if isinstance(added, BatchTensor):
        if _back(added) != back or not added._layout.lies_as(layout):
            return NotImplemented
    elif added.dim() >= back and added.shape[-back] not in (1, layout.total):
        return NotImplemented
    return BatchTensor.from_local(func(cutter(layout, dims)(added), *factors, **kwargs), layout)


def linear(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``F.linear(x, weight, bias)`` with the batch anywhere but in the last dimension."""
    arguments = {**dict(zip(("input", "weight", "bias"), args, strict=False)), **kwargs}
    batch, weights = arguments.get("input"), [arguments.get("weight"), arguments.get("bias")]
    if not isinstance(batch, BatchTensor) or weights[0] is None or batch._layout.dim == batch.dim() - 1:
        return NotImplemented
    if any(isinstance(w, BatchTensor) for w in weights) or (weights[1] is not None and weights[1].dim() > 1):
        return NotImplemented
    replicated = [w if w is None else replicate(w) for w in weights]
    return BatchTensor.from_local(func(to_local(batch), *replicated), batch._layout)


def bilinear(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``F.bilinear(x1, x2, weight, bias)``: both inputs have a row per sample."""
    batch = next((value for value in args[:2] if isinstance(value, BatchTensor)), None)
    weights = args[2:]
    if batch is None or kwargs or len(args) < 3 or batch._layout.dim == batch.dim() - 1:
        return NotImplemented
    if any(isinstance(w, BatchTensor) for w in weights) or args[0].dim() != args[1].dim():
        return NotImplemented
    left, right = (aligned(value, batch._layout) for value in args[:2])
    if left is None or right is None:
        return NotImplemented
    replicated = [w if w is None else replicate(w) for w in weights]
    return BatchTensor.from_local(func(left, right, *replicated), batch._layout)


def distance(names: tuple[str, ...], dim: int | None) -> Rule:
    """Make the rule of ``cosine_similarity`` and ``pairwise_distance``, which broadcast and reduce one dimension.

    Args:
        names: the function's arguments in order.
        dim: default of the reduced dimension; None if it is always the last.
    """

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        pair = [arguments.pop("x1", None), arguments.pop("x2", None)]
        if not all(isinstance(value, Tensor) for value in pair):
            return NotImplemented
        layout, dims = common_layout(pair), broadcast_dims(pair)
        reduced = arguments.get("dim", -1 if dim is None else dim)
        if layout is None or type(reduced) is not int or not -dims <= reduced < dims or reduced % dims == layout.dim:
            return NotImplemented
        stays = arguments.get("keepdim", False) or reduced % dims > layout.dim
        cut: Callable[[Any], Tensor] = cutter(layout, dims)
        result = func(cut(pair[0]), cut(pair[1]), **arguments)
        return BatchTensor.from_local(result, layout.at(layout.dim - (not stays)))

    return rule


def rules() -> list[tuple[Any, Rule]]:
    """Functions of two operands and their rules."""
    matmul = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.linalg.matmul, torch.mm, Tensor.mm, torch.mv)
    return [
        *((func, product) for func in (*matmul, Tensor.mv)),
        *((func, stacked(product)) for func in (torch.bmm, Tensor.bmm)),
        *((func, added_product) for func in (torch.addmm, Tensor.addmm, torch.addmv, Tensor.addmv)),
        *((func, stacked(added_product)) for func in (torch.baddbmm, Tensor.baddbmm)),
        (F.linear, linear),
        (torch.bilinear, bilinear),
        (torch.cosine_similarity, distance(("x1", "x2", "dim", "eps"), 1)),
        (torch.pairwise_distance, distance(("x1", "x2", "p", "eps", "keepdim"), None)),
    ]
