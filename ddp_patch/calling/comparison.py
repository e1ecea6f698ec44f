"""Tell whether a module that was tried on rows gave the same as on the whole batch."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..batch.forms import to_local
from ..batch.layout import RowPlacement
from ..batch.pending_tensor import PendingTensor
from ..batch.tensor import BatchTensor
from ..batch.world import World
from ..structure import PIECE, is_container, leaves, pieces, strided
from .graph_units import AnyRows, GraphRows, UnitPlacement
from .scripts_code import is_own

_SAMPLE = 2**18
_HALF = 1e-4  # below the precision of float16 and bfloat16

Place = RowPlacement | UnitPlacement
Dims = Mapping[str, Place | None]  # of outputs, by path; None for what every rank has whole


def compare(
    ours: Any, whole: Any, rows: AnyRows, gathers_scalars: bool = False, is_strict: bool = False
) -> Dims | None:
    """Compare what a module gave for some rows with what it gave for the whole batch, without communication.

    Args:
        ours: for some rows.
        whole: for all of them.
        rows: which of all rows these are.
        gathers_scalars: 0-dim outputs are per rank by contract.
        is_strict: kernels got the same rows in both, so that nothing but the forward's own arithmetic differs.

    Returns:
        where each tensor has its rows, by path (None: the same on both), or None if the rows are not independent.
    """
    mine, theirs = list(leaves(ours)), list(leaves(whole))
    if [path for path, _ in mine] != [path for path, _ in theirs]:
        return None
    dims: dict[str, Place | None] = {}
    for (path, left), (_, right) in zip(mine, theirs, strict=True):
        if not isinstance(left, Tensor) or not isinstance(right, Tensor):
            if not same_value(left, right):
                return None
            continue
        if isinstance(left, PendingTensor) and isinstance(right, PendingTensor):
            if not close(left.part, right.part, is_strict):  # of the same rows
                return None
            dims[path] = None
            continue
        if left.dim() == 0 == right.dim() and gathers_scalars:
            dims[path] = RowPlacement(0)
            continue
        # The rows are fewer than all rows, so the dimension in which the shapes differ is the batch's.
        differing = [
            dim for dim, sizes in enumerate(zip(left.shape, right.shape, strict=False)) if sizes[0] != sizes[1]
        ]
        if left.dim() != right.dim() or len(differing) > 1 or bool(differing) < isinstance(right, BatchTensor):
            return None
        dims[path] = None
        if differing:
            dim = differing[0]
            places = _places(rows, dim, left.shape[dim], right.shape[dim])
            dims[path] = next((place for place in places if _is_there(place, left, right, rows, is_strict)), None)
            if dims[path] is None:
                return None
        elif isinstance(right, BatchTensor) or not close(left, right, is_strict):
            return None
    return dims


def _places(rows: AnyRows, dim: int, some: int, all_: int) -> Iterable[Place]:
    """Where a result may have its rows: in a dimension that is so long for them, and so long for the batch."""
    if isinstance(rows, GraphRows):
        return rows.places(dim, some, all_)
    size, rest = divmod(some, rows.count)
    if rest or all_ != size * rows.total:
        return ()
    return (RowPlacement(dim, size), RowPlacement(dim, 1, size))[: 1 + (size > 1)]


def _is_there(place: Any, left: Tensor, right: Tensor, rows: AnyRows, is_strict: bool) -> bool:
    """Tell whether a result has its rows in a place."""
    its = rows.at(place)
    if not isinstance(right, BatchTensor):
        return close(left, its.of(right, place.dim), is_strict)
    is_dealt = right._layout.dim == place.dim and right._layout.rows(World.get().rank) == its
    return is_dealt and close(left, to_local(right), is_strict)


def same_value(left: Any, right: Any, depth: int = 3) -> bool:
    """Tell whether two values beside tensors are the same, as far as can be told: not inside packages' objects."""
    if isinstance(left, (bool, int, float, str, set, frozenset)):
        return type(left) is type(right) and (left == right or left != left)  # NaN
    if hasattr(type(left), "dtype") and hasattr(type(left), "tobytes"):  # NumPy's
        return type(left) is type(right) and bool(left.tobytes() == right.tobytes())
    if isinstance(left, Tensor):
        return False  # in an object of the script's, where its rows could not be followed
    if not hasattr(left, "__dict__") or callable(left) or depth == 0 or not is_own(type(left)):
        return not _holds_rows(left, right, depth)
    mine, theirs = vars(left), getattr(right, "__dict__", {})
    return mine.keys() == theirs.keys() and all(same_value(mine[key], theirs[key], depth - 1) for key in mine)


def _holds_rows(left: Any, right: Any, depth: int) -> bool:
    """Tell whether a package's object holds tensors of some rows, as a distribution does."""
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return left.shape != right.shape
    if not hasattr(left, "__dict__") or isinstance(left, type) or depth == 0:
        return False
    theirs = getattr(right, "__dict__", {})
    return any(_holds_rows(value, theirs.get(name), depth - 1) for name, value in vars(left).items())


def close(left: Tensor, right: Tensor, is_strict: bool = False) -> bool:
    """Equal up to what another batch size does to a kernel's rounding; mixing rows changes far more.

    Args:
        left: some values.
        right: others.
        is_strict: no kernel got another batch size.
    """
    if left.shape != right.shape or left.layout is not right.layout:
        return False
    if left.layout is not torch.strided:
        return all(map(close, strided(left), strided(right), itertools.repeat(is_strict)))
    if not (left.is_floating_point() or left.is_complex()):
        return torch.equal(left, right)
    usual = usual_size(right)
    eps = torch.finfo(left.dtype).eps
    precision = eps * (32 if eps < _HALF else 2) if is_strict else eps**0.5
    return all(  # they may be logits
        map(_are_close, pieces(left), pieces(right), itertools.repeat(usual), itertools.repeat(precision))
    )


def _are_close(left: Tensor, right: Tensor, usual: Tensor, precision: float) -> bool:
    finite = torch.isfinite(right)
    if not torch.equal(torch.isfinite(left), finite):
        return False
    if not finite.all():
        left, right = left[finite], right[finite]
    return bool(((left - right).abs() <= precision * (right.abs() + usual) + 1e-30).all())


def usual_size(values: Tensor) -> Tensor:
    """Give the median size of what is finite and not zero; of many values, of some that are drawn alike on each rank.

    Not the largest, which may be what masks something out.
    """
    values = values.flatten()
    if len(values) > PIECE:
        drawn = torch.Generator("cpu").manual_seed(0)
        places = torch.randint(len(values), (_SAMPLE,), generator=drawn, device="cpu")
        values = values[places.to(values.device)]
    sizes = values.abs()
    sizes = sizes[torch.isfinite(sizes) & (sizes > 0)]
    return sizes.median() if len(sizes) else sizes.new_zeros(())


def same_state(ours: nn.Module, theirs: nn.Module) -> bool:
    """Tell whether two copies hold the same buffers and attributes after their calls."""
    for mine, other in zip(ours.modules(), theirs.modules(), strict=True):
        for key in {**vars(mine), **vars(other)}:
            if key in ("_parameters", "_modules"):
                continue
            if not _same_values(vars(mine).get(key), vars(other).get(key)):
                return False
    return True


def _opened(value: Any, depth: int = 3) -> Any:
    """Look into objects of the author's own, such as a meter."""
    if isinstance(value, (nn.Module, Tensor, type)) or callable(value) or depth == 0:
        return value
    if isinstance(value, collections.deque):
        return [_opened(item, depth - 1) for item in value]
    if hasattr(value, "__dict__") and not is_container(value):
        return {name: _opened(item, depth - 1) for name, item in vars(value).items()}
    return value


def _same_values(mine: Any, other: Any) -> bool:
    left, right = list(leaves(_opened(mine))), list(leaves(_opened(other)))
    if [path for path, _ in left] != [path for path, _ in right]:
        return False
    for (_, a), (_, b) in zip(left, right, strict=True):
        if a is b:
            continue
        if isinstance(a, PendingTensor) and isinstance(b, PendingTensor):
            a, b = a.part, b.part  # of the same rows
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            if a.shape != b.shape or not all(map(is_close, strided(a), strided(b))):
                return False
        elif isinstance(a, (bool, int, float, str, Tensor)) and (type(a) is not type(b) or a != b):
            return False
    return True


def is_close(mine: Tensor, other: Tensor) -> bool:
    """Tell whether state, or a constant, is the same but for rounding, however small it is. Counters have none.

    Args:
        mine: of some rows.
        other: of all of them.
    """
    if mine.shape != other.shape:
        return False
    if not (mine.is_floating_point() or mine.is_complex()):
        return torch.equal(mine, other)
    if mine.is_complex():
        mine, other = (torch.view_as_real(each.resolve_conj()) for each in (mine, other))
    finite = (piece.double().abs().nan_to_num(nan=0.0, posinf=0.0) for piece in pieces(mine) if piece.numel())
    largest = max((float(piece.max()) for piece in finite), default=0.0)
    return all(
        torch.allclose(one.double(), two.double(), rtol=1e-6, atol=1e-6 * largest, equal_nan=True)
        for one, two in zip(pieces(mine), pieces(other), strict=True)
    )
