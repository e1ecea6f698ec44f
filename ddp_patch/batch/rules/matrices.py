"""Functions of batches of matrices, which are the last two dimensions, and of pairs of vectors: ``torch.linalg``."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from ..forms import to_local
from ..tensor import BatchTensor, Rule
from ..world import World
from .dims import wrap
from .elementwise import broadcast_dims, common_layout, cutter

# Each matrix by itself, whatever it holds.
_OF_ALL = (
    *("det", "slogdet", "logdet", "matrix_exp", "qr", "lu", "tril", "triu"),
    *("solve_triangular", "triangular_solve", "cholesky_solve", "cholesky_inverse", "lu_solve", "ldl_solve"),
    *("cholesky_ex", "inv_ex", "solve_ex", "lu_factor_ex", "ldl_factor_ex"),
)
# The same, but some matrices are refused.
_OF_SOME = (
    *("cholesky", "inv", "inverse", "solve", "eigh", "eigvalsh", "eig", "eigvals", "svd", "svdvals", "pinv"),
    *("pinverse", "lu_factor", "ldl_factor", "cond", "matrix_power", "matrix_rank"),
)
# Here fewer dimensions mean something else, which a rank's rows may not tell: vectors, pivots.
_OF_ONE_DIM = ("solve", "solve_ex", "lu_solve", "ldl_solve")


def of_all(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute this rank's matrices."""
    return (of_some if kwargs.get("check_errors") else _on_rows)(func, args, kwargs)


def _on_rows(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    layout = _layout(func, args, kwargs)
    if layout is None:
        return NotImplemented
    cut = cutter(layout, layout.dim + _behind(args, kwargs))
    result = func(*map(cut, args), **{name: cut(value) for name, value in kwargs.items()})
    return wrap(result, lambda rows: BatchTensor.from_local(rows, layout))


def of_some(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Likewise. If a rank's are refused, the whole is computed, and refused as in one process."""
    world, result, refused = World.get(), None, None
    if _layout(func, args, kwargs) is None:
        return NotImplemented
    try:
        result = _on_rows(func, args, kwargs)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # of which LinAlgError is one
        refused = error
    if world.skips_collectives:
        if refused is not None:
            raise refused
        return result
    device = next(value.device for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
    with nullcontext() if world.observation is None else world.observation.paused():
        are_refused = int(world.all_reduce(torch.tensor(int(refused is not None), device=device)))
    return NotImplemented if are_refused else result


def diag_embed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.diag_embed(x)``: the last dimension becomes two."""
    batch = args[0] if args else kwargs.get("input")
    if len(args) > 2 or not set(kwargs) <= {"input", "offset"} or not isinstance(batch, BatchTensor):
        return NotImplemented
    if batch._layout.dim == batch.dim() - 1:
        return NotImplemented
    rows = func(to_local(batch), *args[1:], **{name: kwargs[name] for name in kwargs if name != "input"})
    return BatchTensor.from_local(rows, batch._layout)


def diagonal(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.diagonal(0, -2, -1)``: two dimensions become one, the last."""
    batch = args[0] if args else kwargs.get("input")
    given = {**dict(zip(("input", "offset", "dim1", "dim2"), args, strict=False)), **kwargs}
    first, second = (-2, -1) if func is torch.linalg.diagonal else (0, 1)
    dims = [given.get("dim1", first), given.get("dim2", second)]
    if not set(given) <= {"input", "offset", "dim1", "dim2"} or not isinstance(batch, BatchTensor):
        return NotImplemented
    if not all(type(dim) is int and -batch.dim() <= dim < batch.dim() for dim in dims):
        return NotImplemented
    dims, dim = [dim % batch.dim() for dim in dims], batch._layout.dim
    if dim in dims:
        return NotImplemented
    rows = func(to_local(batch), *args[1:], **{name: kwargs[name] for name in kwargs if name != "input"})
    return BatchTensor.from_local(rows, batch._layout.at(dim - sum(other < dim for other in dims)))


def of_vectors(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.linalg.cross(x, y, dim=-1)``, and ``vecdot``, in which that dimension goes."""
    tensors, dim = [*args[:2]], kwargs.get("dim", args[2] if len(args) > 2 else -1)
    if len(args) not in (2, 3) or not set(kwargs) <= {"dim"} or not all(isinstance(value, Tensor) for value in tensors):
        return NotImplemented
    layout, dims = common_layout(tensors), broadcast_dims(tensors)
    if layout is None:
        return NotImplemented
    if dim is None or (func in (torch.cross, Tensor.cross) and len(args) == 2 and not kwargs):
        with torch._C.DisableTorchFunctionSubclass():
            shape = torch.broadcast_shapes(*(value.shape for value in tensors))
        dim = next((at for at, size in enumerate(shape) if size == 3), None)  # of the whole; rows may be three as well
    if type(dim) is not int or not -dims <= dim < dims or dim % dims == layout.dim:
        return NotImplemented
    rows = func(*map(cutter(layout, dims), tensors), dim=dim)
    return BatchTensor.from_local(rows, layout.at(layout.dim - (rows.dim() < dims and dim % dims < layout.dim)))


def _layout(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """How matrices that lie side by side are dealt; None for vectors, and if their own dimensions are."""
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    batches = [value for value in tensors if isinstance(value, BatchTensor)]
    if kwargs.get("out") is not None or not batches or any(isinstance(value, (list, tuple)) for value in args):
        return None
    if {batch.dim() for batch in batches} != {broadcast_dims(tensors)} or min(map(Tensor.dim, tensors)) < 2:
        return None
    if len(set(map(Tensor.dim, tensors))) > 1 and func.__name__.removeprefix("linalg_") in _OF_ONE_DIM:
        return None
    layout = common_layout(tensors)
    return None if layout is None or layout.dim >= batches[0].dim() - 2 else layout


def _behind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How many dimensions come from that of the rows on, counted with it."""
    batch = next(value for value in (*args, *kwargs.values()) if isinstance(value, BatchTensor))
    return batch.dim() - batch._layout.dim


def rules() -> list[tuple[Any, Rule]]:
    """Those that torch has, in each of its homes."""
    owners = (torch, Tensor, torch.linalg)
    named = [(name, of_all) for name in _OF_ALL] + [(name, of_some) for name in _OF_SOME]
    named += [("diag_embed", diag_embed), ("diagonal", diagonal), ("cross", of_vectors), ("vecdot", of_vectors)]
    return [
        (getattr(owner, name), rule) for name, rule in named for owner in owners if callable(getattr(owner, name, None))
    ]
