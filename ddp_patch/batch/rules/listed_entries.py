"""``x.nonzero()`` and ``torch.where(mask)``: each rank lists entries of its own rows, by their numbers in the whole.

What is listed is dealt as what the same mask picks, and so is what is picked at it: mixtures of experts look for the
tokens of an expert like that, detectors for the cells that have an object.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..forms import to_local
from ..layout import Layout
from ..tensor import BatchTensor, Rule
from ..versions import version
from ..world import World
from .elementwise import out_of_place
from .mask_counts import layout_of_picked


class _Listed(NamedTuple):
    """Whose rows a rank's numbers are of."""

    of: weakref.ref[Tensor]  # the numbers: copies have what they held
    version: int
    layout: Layout
    is_order: bool  # each row of the batch, once


def nonzero(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.nonzero()``, ``x.nonzero(as_tuple=True)``, ``torch.argwhere(x)``."""
    batch, as_tuple = kwargs.get("input", args[0] if args else None), kwargs.get("as_tuple", False)
    if (
        len(args) > 1
        or not isinstance(batch, BatchTensor)
        or type(as_tuple) is not bool
        or kwargs.get("out") is not None
    ):
        return NotImplemented
    layout = batch._layout
    its = layout_of_picked(batch, layout)
    if its is None:
        return NotImplemented
    note_told_rows()
    rows = to_local(batch)
    listed = rows.detach().nonzero()
    listed[:, layout.dim] = numbers_of_rows(layout, rows.device)[listed[:, layout.dim]]
    if not as_tuple:
        return BatchTensor.from_local(listed, its)
    columns = listed.unbind(1)
    note_listed(columns[layout.dim], layout)
    return tuple(BatchTensor.from_local(column, its) for column in columns)


def where(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.where(condition, x, y)``, and ``torch.where(mask)``."""
    given = (*args, *kwargs.values())
    if len(given) == 1:
        return nonzero(func, given, {"as_tuple": True})
    return out_of_place(func, args, kwargs) if len(given) == 3 else NotImplemented


def note_told_rows() -> None:
    """Note that a forward which is observed is told which rows are which."""
    if (seen := World.get().observation) is not None:
        seen.forbid_split(f"{seen.function} tells rows by their numbers", at_line=True)


def note_listed(numbers: Tensor, layout: Layout, is_order: bool = False) -> None:
    """Note that a rank's numbers are of its own rows.

    Args:
        numbers: int64.
        layout: of the batch whose rows they are.
        is_order: they are of all of its rows, of each once.
    """
    numbers._ddp_patch_rows = _Listed(weakref.ref(numbers), version(numbers), layout, is_order)  # type: ignore[attr-defined]


def divided(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``order // k``: entries of rows that became ``k`` each are of the rows that they were made of."""
    result = out_of_place(func, args, kwargs)
    note_divided(args, result)
    return result


def note_divided(args: tuple[Any, ...], result: Any) -> None:
    """Note that numbers of rows were divided.

    Args:
        args: of the division.
        result: of it; may be something else than a batch.
    """
    if not isinstance(result, BatchTensor) or len(args) != 2 or type(args[1]) is not int or args[1] < 1:
        return
    known = _listed(to_local(args[0])) if isinstance(args[0], BatchTensor) else None
    its = None if known is None else known.layout.divided(args[1], known.layout.dim)
    if its is not None:
        note_listed(to_local(result), its)


def lists_own_rows(numbers: Tensor, layout: Layout) -> bool:
    """Tell whether these were listed of a batch that is dealt like this, so that every rank's are of its own rows.

    Args:
        numbers: this rank's.
        layout: of the batch.
    """
    known = _listed(numbers)
    return known is not None and known.layout.lies_as(layout)


def ordered(numbers: Tensor) -> Layout | None:
    """Give the layout of the batch of which these are all rows, in another order; None if they are something else."""
    known = _listed(numbers)
    return known.layout if known is not None and known.is_order else None


def numbers_of_rows(layout: Layout, device: torch.device) -> Tensor:
    """Number this rank's rows among those of all ranks."""
    return layout.rows(World.get().rank).numbers(device)


def _listed(numbers: Tensor) -> _Listed | None:
    known: _Listed | None = getattr(numbers, "_ddp_patch_rows", None)
    if known is None or known.of() is not numbers or numbers.is_inference():  # whose writes are not all heard of
        return None
    return known if known.version == version(numbers) else None


def rules() -> list[tuple[Any, Rule]]:
    """Functions that list entries."""
    listing = (torch.nonzero, Tensor.nonzero, torch.argwhere, Tensor.argwhere)
    dividing = (torch.floor_divide, Tensor.floor_divide, Tensor.__floordiv__)
    return [
        *((func, nonzero) for func in listing),
        *((func, divided) for func in dividing),
        (torch.where, where),
        (Tensor.where, where),
    ]
