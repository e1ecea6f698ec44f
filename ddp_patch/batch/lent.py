"""Arrays that NumPy may write to, made of batches that are gone: ``x.detach().numpy()[:] = 0`` writes to ``x``.

The memory of the rows remembers them, as long as somebody holds it. Writes by NumPy count no version, so what was lent
is compared with a copy.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..structure import leaves
from .crossings import all_gather, local_rows
from .layout import Layout
from .memory import shares_memory


@dataclass(frozen=True, slots=True)
class Lent:
    """What the script has of a batch's whole, and where in the memory of the rows it belongs."""

    batch: weakref.ref[Any]  # as long as it is there, it takes care itself
    whole: Tensor
    copy: Tensor  # what the whole held when it last agreed with the rows
    layout: Layout
    place: tuple[torch.Size, tuple[int, ...], int]

    def _is_on_its_own(self) -> bool:
        batch = self.batch()
        return batch is None or batch._whole is not self.whole

    def rows(self, neighbour: Tensor) -> Tensor:
        """The rows, in the memory that they share with others."""
        return neighbour.detach().as_strided(*self.place)

    def bring_back(self, neighbour: Tensor) -> None:
        """Carry what NumPy wrote over to the rows."""
        if self._is_on_its_own() and not same(self.whole, self.copy):
            with torch.no_grad(), torch.inference_mode(neighbour.is_inference()):
                self.rows(neighbour).copy_(local_rows(self.whole, self.layout))
            self.copy.copy_(self.whole)

    def show(self, neighbour: Tensor) -> None:
        """Carry what was written to the rows over to the array. One all_gather."""
        if self._is_on_its_own():
            with torch.no_grad(), torch.inference_mode(neighbour.is_inference()):
                self.whole.copy_(all_gather(self.rows(neighbour), self.layout))
            self.copy.copy_(self.whole)


_has_lent: list[bool] = []  # whether any batch ever did, so that the others need not ask


def lend(batch: Any) -> None:
    """Note that the script got an array of a batch's whole.

    Args:
        batch: has its rows, its whole, and a copy of that.
    """
    rows = batch._rows
    notes = rows.untyped_storage().__dict__.setdefault("ddp_patch_lent", [])
    if not any(lent.whole is batch._whole for lent in notes):
        place = rows.shape, rows.stride(), rows.storage_offset()
        notes.append(Lent(weakref.ref(batch), batch._whole, batch._whole_copy, batch._layout, place))
        _has_lent[:] = [True]


def has_lent() -> bool:
    """Tell whether any batch ever lent its memory."""
    return bool(_has_lent)


def lent_by(rows: Tensor) -> list[Lent]:
    """What the script has of the wholes of batches that shared this memory."""
    return rows.untyped_storage().__dict__.get("ddp_patch_lent", []) if _has_lent else []


def watch(batch: Any, result: Any) -> None:
    """Note what views of a batch's whole hold: ``x[0].numpy()[:] = 0`` counts no version."""
    if batch._whole_copy is None and batch._whole.device.type == "cpu":
        for _, leaf in leaves(result):
            if shares_memory(leaf, batch._whole):
                view = leaf.detach()
                batch._views.append((weakref.ref(leaf), view, view.clone()))


def was_written(batch: Any) -> bool:
    """Tell whether what the script has of a batch's whole was written to without a version.

    All of it is compared, not this rank's rows of it: the ranks must decide alike.
    """
    copy, views = batch._whole_copy, batch._views
    if views:
        batch._views = [noted for noted in views if noted[0]() is not None]
    return (copy is not None and not same(batch._whole, copy)) or any(not same(view, held) for _, view, held in views)


def renew(batch: Any) -> None:
    """Note what the script has of a batch's whole, now that both forms agree."""
    if batch._whole_copy is not None:
        batch._whole_copy.copy_(batch._whole.detach())
    for _, view, held in batch._views:
        held.copy_(view)


def same(left: Tensor, right: Tensor) -> bool:
    """Tell whether two tensors hold the same, NaN being itself."""
    return torch.equal(left, right) or bool(((left == right) | ((left != left) & (right != right))).all())
