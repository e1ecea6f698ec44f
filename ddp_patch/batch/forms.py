"""The two forms of a batch, its rows and the whole, each made from the other when asked.

Version counters tell which form changed last, so that in-place writes to either are seen in both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import BatchError
from . import aliases, uncounted_writes
from .aliases import ALIASED, can_delay_copy, holders_of, storage_ptr
from .crossings import all_gather, shard
from .transforms import outside_transforms
from .versions import is_same, node_of, note_write, version
from .world import World

if TYPE_CHECKING:
    from .tensor import BatchTensor


def mark_in_sync(batch: BatchTensor) -> None:
    """Note that both forms hold the same values now, by their versions."""
    rows, whole = batch._rows, batch._whole
    batch._rows_version = 0 if rows is None else version(rows)
    batch._whole_version = 0 if whole is None else version(whole)
    batch._nodes = node_of(rows), node_of(whole)
    if whole is not None and batch._whole_copy is not None:
        batch._whole_copy = whole.detach().clone()


def to_local(batch: BatchTensor) -> Tensor:
    """This rank's rows, with their autograd graph."""
    if ALIASED or batch._whole_copy is not None:
        _propagate_writes(batch)
    if batch._whole is not None and version(batch._whole) != batch._whole_version:
        copy_whole_to_rows(batch)
    if batch._rows is None:
        whole = batch._whole
        assert whole is not None
        # The graph must be there even if the first reader (a print, say) was inside no_grad.
        with torch.inference_mode(whole.is_inference()), torch.set_grad_enabled(whole.requires_grad):
            rows = shard(whole, batch._layout)
            # A view would share the whole's version counter, and the two forms could no longer be told apart.
            is_view = storage_ptr(rows) == storage_ptr(whole) if rows.is_inference() else rows._is_view()
            batch._rows = rows.clone() if is_view else rows
        mark_in_sync(batch)
    return batch._rows


def full_tensor(batch: BatchTensor) -> Tensor:
    """The whole batch, gathered once and remembered until it changes."""
    if World.current is not None and World.current.observation is not None:
        World.current.observation.note_whole_batch_use(batch)
    if batch._rows is not None and version(batch._rows) == batch._rows_version and can_delay_copy(batch):
        return batch._whole  # type: ignore[return-value]
    if ALIASED or batch._whole_copy is not None:
        _propagate_writes(batch)
    if batch._is_aliased and batch._rows is not None and batch._whole is not None:
        _refresh_whole(batch, batch._rows, batch._whole)
    if batch._whole is not None:
        if version(batch._whole) != batch._whole_version:
            copy_whole_to_rows(batch)
        elif batch._rows is not None and version(batch._rows) != batch._rows_version:
            if is_whole_shared(batch):
                _copy_rows_to_whole(batch)
            else:
                batch._whole = None
    if batch._whole is None:
        rows = batch._rows
        assert rows is not None
        wants = rows.requires_grad
        with outside_transforms(), torch.inference_mode(rows.is_inference()), torch.set_grad_enabled(wants):
            batch._whole = all_gather(rows, batch._layout)
        batch._is_whole_source = False
        mark_in_sync(batch)
    return batch._whole


def whole_in_worker(value: Any) -> Any:
    """What a worker of a loader computes on: the whole, where it was gathered before the worker was started."""
    if not hasattr(value, "_layout"):
        return value
    if value._whole is None:
        World.get()  # raises
    return value._whole


def source_of(batch: BatchTensor) -> tuple[Tensor, bool]:
    """The form that all gradients of a batch come by, and whether it is the whole: the other is computed from it."""
    if batch._rows is not None and batch._whole is not None and batch._is_whole_source is None:
        batch._rows, batch._is_whole_source = None, True  # of a view, whose whole is computed apart from its rows
    rows = to_local(batch)
    if batch._whole is None or not batch._is_whole_source or version(rows) != batch._rows_version:
        return rows, False
    return batch._whole, True


def full_tensor_if_gathered(batch: BatchTensor) -> Tensor | None:
    """The whole batch, if this rank has it: no communication."""
    whole, rows = batch._whole, batch._rows
    if whole is None or batch._is_aliased or version(whole) != batch._whole_version or holders_of(rows):
        return None
    return whole if rows is None or version(rows) == batch._rows_version else None


def forget_whole(batch: BatchTensor) -> None:
    """Drop the gathered form after the rows were written to."""
    if batch._rows is not None:
        batch._whole = None


def copy_whole_to_rows(batch: BatchTensor, is_copied: bool = False) -> None:
    """Copy this rank's part of the whole, which was written to, into the rows.

    Args:
        batch: whose whole was written to.
        is_copied: its rows are a view of memory into which it was copied already.
    """
    whole, rows = batch._whole, batch._rows
    assert whole is not None
    if rows is not None:
        # Whoever looks first may do so in another mode than the one that it was written in.
        is_recorded = whole.requires_grad and node_of(whole) != batch._nodes[1]
        if not is_copied:
            # Into the same memory: other batches may be views of these rows. What counted no version counts none here,
            # since a backward may have kept them.
            kept = rows if uncounted_writes.is_counted(batch) else uncounted_writes.data_of(rows)
            with outside_transforms(), torch.inference_mode(rows.is_inference()), torch.set_grad_enabled(is_recorded):
                kept.copy_(shard(whole, batch._layout))
            note_write(rows)
        if is_recorded:
            batch._is_whole_source = True
            if rows.retains_grad:
                whole.retain_grad()
    mark_in_sync(batch)


def _copy_rows_to_whole(batch: BatchTensor) -> None:
    """Copy the rows, which were written to, into the whole, which others look at. One all_gather."""
    whole, rows = batch._whole, batch._rows
    assert whole is not None
    assert rows is not None
    is_recorded = rows.requires_grad and node_of(rows) != batch._nodes[0]
    with outside_transforms(), torch.inference_mode(rows.is_inference()), torch.set_grad_enabled(is_recorded):
        whole.copy_(all_gather(rows, batch._layout))
        note_write(whole)
        if is_recorded:
            batch._is_whole_source = False
    mark_in_sync(batch)


def _refresh_whole(batch: BatchTensor, rows: Tensor, whole: Tensor) -> None:
    """Gather the rows again, which may have been written to through ``.data``. One all_gather."""
    if not is_whole_shared(batch):
        batch._whole = None
    elif version(whole) == batch._whole_version and version(rows) == batch._rows_version:
        with outside_transforms(), torch.no_grad():
            if not is_same(whole, now := all_gather(rows.detach(), batch._layout)):  # others look at this memory
                whole.copy_(now)
        mark_in_sync(batch)


def _propagate_writes(batch: BatchTensor) -> None:
    """Copy what was written to this batch, and to those that only we still hold, to the forms that lack it."""
    if not _try_to_propagate(batch):
        raise BatchError(
            "A batch was written to through views of two tensors, as x[0] and x.view(8, -1)[1] are, before it was "
            "looked at again, and it is not known which was last. Take both of one: y = x.view(8, -1); y[0]; y[1]."
        )
    # What is unclear of a batch that nobody looks at is an error of who looks at what shares its rows.
    undecided = [other for other in aliases.held_by_nobody_else() if not _try_to_propagate(other)]
    del undecided[: -aliases.MOST_UNDECIDED]
    aliases.release_unused()


def _try_to_propagate(batch: BatchTensor) -> bool:
    """Copy writes through wholes to the rows that they share, and from there to the wholes of the others.

    Returns:
        False where it is not known which write was the last.
    """
    sliced = batch._whole if batch._is_slice else None  # of what views of other shapes share
    each = [*([] if sliced is None else aliases.holders_in(sliced)), batch]
    is_clear = [_propagate_by_rows(other, other._rows) for other in each if other._rows is not None]
    return all(is_clear)


def _propagate_by_rows(batch: BatchTensor, rows: Tensor) -> bool:
    sharing = holders_of(rows)
    if not any(other is batch for other in sharing):
        sharing.append(batch)
    written: dict[int, list[BatchTensor]] = {}  # by the memory of their wholes, the largest first
    for other in sorted(sharing, key=lambda other: other.forms[0].numel(), reverse=True):
        whole = _whole_if_written(other)
        if whole is not None:
            written.setdefault(storage_ptr(whole), []).append(other)
    if len(written) != 1:
        return not written
    ((written_to, several),) = written.items()
    is_counted = uncounted_writes.is_counted(several[0])
    for other in several:
        copy_whole_to_rows(other, is_copied=other is not several[0] and aliases.spans_its_storage(several[0]))
    for other in sharing:
        whole, local = other._whole, other._rows
        if whole is None or local is None or (is_counted and version(local) == other._rows_version):
            continue
        if storage_ptr(whole) == written_to:
            mark_in_sync(other)
        else:
            _copy_rows_to_whole(other)
    return True


def _whole_if_written(batch: BatchTensor) -> Tensor | None:
    """The whole, if it was written to since both forms were in sync, and the rows were not."""
    whole, rows, copy = batch._whole, batch._rows, batch._whole_copy
    if whole is None or rows is None or version(rows) != batch._rows_version:
        return None
    # All of the whole is compared, not this rank's rows of it: the ranks must decide alike.
    is_written = version(whole) != batch._whole_version or (copy is not None and not is_same(whole, copy))
    return whole if is_written else None


def is_whole_shared(batch: BatchTensor) -> bool:
    """Tell whether somebody else looks at this batch's whole, so that writes have to go through it."""
    if batch._is_slice:
        return True
    return bool(ALIASED) and any(other is batch for other in holders_of(unsynced_rows(batch)))


def unsynced_rows(batch: BatchTensor) -> Tensor:
    """This rank's rows as they are, whatever was written to the whole meanwhile."""
    return to_local(batch) if batch._rows is None else batch._rows


def propagate_rows_write(rows: Tensor) -> None:
    """After a write to rows: copy it to the whole of every batch that shares them, where somebody looks at that."""
    for other in holders_of(rows):
        if other._whole is None:
            continue
        if other._whole.is_inference():
            _copy_rows_to_whole(other)
        else:
            full_tensor(other)
