"""Views of a batch, of slices of it and of its whole are one memory, as they are in one process."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..structure import leaves, map_leaves
from . import aliases
from .forms import full_tensor, is_whole_shared, propagate_rows_write, unsynced_rows
from .versions import node_of, version
from .world import World

if TYPE_CHECKING:
    from .tensor import BatchTensor

_DATA = Tensor.data.__get__  # type: ignore[attr-defined]


def shares_memory(result: Any, whole: Tensor) -> bool:
    """Tell whether a result, or a part of it, looks into a tensor's memory."""
    if isinstance(result, (list, tuple)):
        return any(shares_memory(item, whole) for item in result)
    return (
        isinstance(result, Tensor)
        and not _is_batch(result)
        and result.layout is torch.strided
        and result.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    )


def mark_aliased(batch: BatchTensor, exported: Any = None) -> None:
    """Note that the script got memory of a batch's whole.

    Args:
        batch: that was gathered.
        exported: what the script got, if not another batch.
    """
    if batch._whole is not None and batch._whole.is_inference() and batch._whole_copy is None:
        batch._whole_copy = batch._whole.clone()  # writes to inference tensors count no version
    aliases.register(batch, unsynced_rows(batch))
    if exported is not None:
        aliases.keep_alive(batch, exported)


def look_through(batch: BatchTensor) -> None:
    """Note that a batch's whole is a view of another's: writes go through it, where all of them see it."""
    batch._is_slice = True
    aliases.register_slice(batch)
    if batch._whole is not None and batch._whole.is_inference():
        mark_aliased(batch)


def note_view(batch: BatchTensor, sources: list[BatchTensor]) -> None:
    """Note that a batch may be a view of others that were gathered.

    Args:
        batch: of which the whole is known.
        sources: that it was computed from. One may be a view itself, and gone when its part is written to.
    """
    for source in sources:
        if source._whole is not None and shares_memory(batch._whole, source._whole):
            look_through(batch)
            rows = source._rows
            if rows is not None and (rows.is_inference() or rows._is_view()):
                mark_aliased(source, batch._whole)


def note_sharing(batch: BatchTensor, result: Any, is_export: bool) -> None:
    """Note that a function of a batch's whole gave a part of its memory.

    Args:
        batch: that was gathered.
        result: of the function.
        is_export: its memory is handed to NumPy, say.
    """
    whole = batch._whole
    if whole is None or result is whole or not (is_export or shares_memory(result, whole)):
        return
    if is_export:  # NumPy's writes count no version
        batch._whole_copy = whole.detach().clone()
    mark_aliased(batch, result)


def in_shared_memory(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], target: BatchTensor, result: Any, is_write: bool
) -> Any:
    """Let a batch whose whole somebody looks at show what was written, and its views look at that whole too.

    Args:
        func: the torch function that was called.
        args: its arguments.
        kwargs: its arguments by name.
        target: the batch that it writes to, or may return views of.
        result: what it returned.
        is_write: whether it writes.
    """
    rows = target._rows
    if rows is None:
        return result
    if is_write:
        propagate_rows_write(rows)
        return result
    found = [leaf for _, leaf in leaves(result)]
    views = [leaf for leaf in found if leaf is not target and _is_batch(leaf) and _looks_into(leaf, rows)]
    if not views or not is_whole_shared(target):
        return result

    def shaped(value: Any) -> Any:
        if value is target:
            return full_tensor(target)
        # Views ask others for their shape alone.
        return value.forms[0].new_empty(()).expand(value.shape) if _is_batch(value) else value

    alike = Tensor.detach if func == _DATA else func  # ``.data`` of a view counts its writes apart
    seen = World.get().observation  # rows share memory with their views by themselves
    with torch.set_grad_enabled(target.requires_grad), nullcontext() if seen is None else seen.paused():
        of_whole = alike(*map_leaves(shaped, args), **map_leaves(shaped, kwargs))
    for view, (_, whole) in zip(found, leaves(of_whole), strict=True):
        if any(view is each for each in views):
            view._whole, view._whole_version = whole, version(whole)
            view._nodes = node_of(view._rows), node_of(whole)
            view._lies_as_whole, view._is_whole_source = target._lies_as_whole, None
            look_through(view)
            for holder in aliases.holders_in(whole) if target._is_slice else ():
                aliases.keep_alive(holder, whole)  # whose rows take what is written there, if the target has gone
    return result


def _looks_into(batch: BatchTensor, rows: Tensor) -> bool:
    return batch._whole is None and batch._rows is not None and shares_memory(batch._rows, rows)


def _is_batch(value: Any) -> bool:
    return hasattr(value, "_is_slice")
