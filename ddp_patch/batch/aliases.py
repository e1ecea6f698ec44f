"""Batches whose whole the script has memory of: a view, a slice or a NumPy array."""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..structure import leaves
from .uncounted_writes import hear

if TYPE_CHECKING:
    from .tensor import BatchTensor


@dataclass(slots=True)
class _Kept:
    """A batch, and what the script was given of its memory."""

    batch: BatchTensor
    exported: dict[int, weakref.ref[Any]] = field(default_factory=dict)  # by identity


def _references(entry: _Kept) -> int:
    return sys.getrefcount(entry.batch)


_OURS = _references(_Kept(Tensor()))  # type: ignore[arg-type]
MOST_UNDECIDED = 64  # batches that nobody looks at, and of which it is not known what was written last
_kept: list[_Kept] = []

EXPORTS = {"numpy", "__array__", "__dlpack__", "data_ptr", "untyped_storage", "storage", "share_memory_"}

# Storage of rows -> batches whose gathered form the script holds a view or an array of. A write through it has to reach
# every batch that shares those rows, whichever is looked at first.
ALIASED: dict[int, list[weakref.ref[BatchTensor]]] = {}
_slices: list[weakref.ref[BatchTensor]] = []  # whose whole is a view of another's


def register(batch: BatchTensor, rows: Tensor) -> None:
    """Note that the script got memory of a batch's whole.

    Args:
        batch: that was gathered.
        rows: of this rank, of it.
    """
    key = storage_ptr(rows)
    holders = ALIASED.setdefault(key, [])
    if all(holder() is not batch for holder in holders):
        holders.append(weakref.ref(batch))
        # Not a callback of the reference: a script's last batches go when this module's names are gone.
        weakref.finalize(batch, _let_go, key).atexit = False
    _hear_of_writes()


def register_slice(batch: BatchTensor) -> None:
    """Note that a batch's whole is a view of another's."""
    _slices.append(weakref.ref(batch))
    weakref.finalize(batch, _let_slice_go).atexit = False
    _hear_of_writes()


def keep_alive(batch: BatchTensor, parts: Any) -> None:
    """Hold a batch as long as the script has memory of its whole, though it may be a view of another, and soon be gone.

    Args:
        batch: whose whole the script was given a part of.
        parts: the part, or several.
    """
    entry = next((each for each in _kept if each.batch is batch), None)
    if entry is None:
        entry = _Kept(batch)
        _kept.append(entry)
    for _, leaf in leaves(parts):
        with contextlib.suppress(TypeError):  # a number, as data_ptr() gives
            entry.exported[id(leaf)] = weakref.ref(leaf, functools.partial(_gone, entry.exported, id(leaf)))


def _gone(references: dict[int, weakref.ref[Any]], key: int, leaf: weakref.ref[Any]) -> None:
    if references.get(key) is leaf:
        del references[key]


def held_by_nobody_else() -> list[BatchTensor]:
    """Give batches that this module alone keeps alive."""
    return [entry.batch for entry in _kept if _references(entry) == _OURS]


def is_held_alone(batch: Any) -> bool:
    """Tell whether nothing but a batch looks at the memory of its rows, if it has some: no view, no batch, no graph."""
    return batch._rows is None or _uses(batch) == _OF_ONE


def _uses(batch: Any) -> tuple[int, int]:
    return sys.getrefcount(batch._rows), storage_uses(batch._rows)


def storage_uses(tensor: Tensor) -> int:
    """Count the tensors that share a storage, and this call (torch 2.13)."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


_OF_ONE = _uses(SimpleNamespace(_rows=torch.empty(1, device="cpu")))


def release_unused() -> None:
    """Let go of batches that nobody else holds, and of whose wholes nobody has memory."""
    _kept[:] = [entry for entry in _kept if _references(entry) != _OURS or _is_seen(entry)]


def _is_seen(entry: _Kept) -> bool:
    if entry.exported:
        return True
    # A view of a tensor holds the object, though not as Python counts.
    whole, entry.batch._whole = entry.batch._whole, None
    still = None if whole is None else weakref.ref(whole)
    del whole
    entry.batch._whole = None if still is None else still()
    return entry.batch._whole is not None


def release_all() -> None:
    """Let go of all batches."""
    _kept.clear()


def holders_of(rows: Tensor | None) -> list[BatchTensor]:
    """Batches that share rows, and whose whole the script has memory of."""
    if not ALIASED or rows is None:
        return []
    key = storage_ptr(rows)
    found = [holder() for holder in ALIASED.get(key, [])]
    # One may look elsewhere by now (x.data = value), and the memory that it left be used again, on one rank alone.
    return [its for its in found if its is not None and its._rows is not None and _lies_in(its._rows, key)]


def can_delay_copy(batch: BatchTensor) -> bool:
    """Tell whether what is written through a batch's whole need not reach its rows before somebody looks at them.

    Entry by entry (``x[i] = value``), all rows would be copied for each. Where others share the rows, the order of
    writes counts.
    """
    rows, whole = batch._rows, batch._whole
    if not ALIASED or rows is None or whole is None or batch._is_slice or batch._is_aliased:
        return False
    if batch._whole_copy is not None or whole.is_inference() or whole.requires_grad or rows.requires_grad:
        return False
    holders = holders_of(rows)
    return len(holders) == 1 and holders[0] is batch


def holders_in(whole: Tensor) -> list[BatchTensor]:
    """Batches whose wholes lie in the same memory, and that the script has memory of; those with rows."""
    key = storage_ptr(whole)
    found = [holder() for holders in ALIASED.values() for holder in holders]
    return [its for its in found if its is not None and its._rows is not None and _lies_in(its._whole, key)]


def _lies_in(whole: Tensor | None, key: int) -> bool:
    return whole is not None and storage_ptr(whole) == key


def spans_its_storage(batch: BatchTensor) -> bool:
    """Tell whether a batch's whole takes up all of its storage."""
    whole = batch._whole
    return whole is not None and whole.numel() * whole.element_size() == whole.untyped_storage().nbytes()


def storage_ptr(tensor: Tensor) -> int:
    """Give the address of the storage that a tensor shares with its views."""
    return tensor.untyped_storage().data_ptr()


def _let_go(key: int) -> None:
    holders = [holder for holder in ALIASED.pop(key, []) if holder() is not None]
    if holders:
        ALIASED[key] = holders
    _hear_of_writes()


def _let_slice_go() -> None:
    _slices[:] = [holder for holder in _slices if holder() is not None]
    _hear_of_writes()


def _hear_of_writes() -> None:
    hear(_all if ALIASED or _slices else None)


def _all() -> list[weakref.ref[BatchTensor]]:
    return [*_slices, *(holder for holders in ALIASED.values() for holder in holders)]
