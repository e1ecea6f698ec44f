"""``x.nonzero()`` and ``torch.where(mask)``: each rank lists entries of its own rows, by their numbers in the whole.

What is listed is dealt as what the same mask picks, and so is what is picked at it: mixtures of experts look for the
tokens of an expert like that, detectors for the cells that have an object.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..forms import to_local
from ..layout import Layout
from ..tensor import BatchTensor, Rule
from ..versions import version
from ..world import World
from .elementwise import out_of_place
from .mask_counts import layout_of_picked


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
    listed[:, layout.dim] = _numbers(layout, rows.device)[listed[:, layout.dim]]
    if not as_tuple:
        return BatchTensor.from_local(listed, its)
    columns = listed.unbind(1)
    columns[layout.dim]._ddp_patch_rows = version(listed), layout  # type: ignore[attr-defined]
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


def lists_own_rows(numbers: Tensor, layout: Layout) -> bool:
    """Tell whether these were listed of a batch that is dealt like this, so that every rank's are of its own rows.

    Args:
        numbers: this rank's.
        layout: of the batch.
    """
    known = getattr(numbers, "_ddp_patch_rows", None)
    return known is not None and known[0] == version(numbers) and known[1].lies_as(layout)


def _numbers(layout: Layout, device: torch.device) -> Tensor:
    """Of this rank's rows, among those of all ranks."""
    return layout.rows(World.get().rank).of(torch.arange(layout.total, device=device), 0)


def rules() -> list[tuple[Any, Rule]]:
    """Functions that list entries."""
    listing = (torch.nonzero, Tensor.nonzero, torch.argwhere, Tensor.argwhere)
    return [*((func, nonzero) for func in listing), (torch.where, where), (Tensor.where, where)]
