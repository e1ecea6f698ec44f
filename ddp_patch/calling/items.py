"""Lists with an entry for each row of the batch, as collate functions make of pictures that differ in size.

What a forward does with them, entry by entry, is Python: it pads to the largest, branches on how many boxes there are,
counts those of all pictures. So it runs as it is written, on every rank, and the modules that it calls are dealt the
tensors that have a row for each entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..batch.tensor import BatchTensor
from ..structure import is_container, leaves, map_items
from .argument_names import argument_names
from .calls import Call


def row_count_of_lists(values: Sequence[Any], rows: int | None, beside: bool) -> int | None:
    """Count the rows of a call that is given lists with an entry for each; None if it is given none.

    Args:
        values: of the call's arguments.
        rows: of the batch that the script is working on, as far as it is known.
        beside: there are batches beside the lists, so that tensors with as many rows are more likely inputs of their
            own, or the states of a recurrent layer.
    """
    if not any(map(is_container, values)):  # as most calls, in every step
        return None
    lists = [value for value in _lists(values) if all(map(_holds_tensors, value))]
    if any(len(value) == rows and not (beside and _are_inputs(value, rows)) for value in lists):
        return rows
    # Entries by name are samples, as many as there are: a script may leave some of a batch out.
    named = {len(value) for value in lists if all(isinstance(entry, dict) for entry in value)}
    count = named.pop() if len(named) == 1 else None
    if beside or count is None or not all(_is_all_within(value, count) for value in values):
        return None
    return count


def are_plain(call_leaves: Iterable[tuple[str, Any]], rows: int) -> bool:
    """Tell whether a layer is the first to get tensors that have a row for each entry: nothing of it is a batch yet."""
    tensors = [leaf for _, leaf in call_leaves if isinstance(leaf, Tensor)]
    if any(isinstance(leaf, BatchTensor) for leaf in tensors):
        return False
    return any(leaf.dim() > 0 and leaf.shape[0] == rows for leaf in tensors)


def _lists(value: Any) -> Iterator[Any]:
    """Give the lists within."""
    for item in _directly_in(value):
        if isinstance(item, (list, tuple)) and item:
            yield item
        if is_container(item):
            yield from _lists(item)


def _directly_in(value: Any) -> list[Any]:
    found: list[Any] = []

    def take(item: Any) -> Any:
        found.append(item)
        return item

    map_items(take, value)
    return found


def _holds_tensors(entry: Any) -> bool:
    return any(isinstance(leaf, Tensor) for _, leaf in leaves(entry))


def _are_inputs(value: Any, rows: int) -> bool:
    return all(isinstance(entry, Tensor) and rows in entry.shape for entry in value)


def _is_all_within(value: Any, count: int) -> bool:
    """Tell whether all tensors stand in lists of so many entries."""
    if isinstance(value, (list, tuple)) and len(value) == count and all(map(_holds_tensors, value)):
        return True
    if not is_container(value):
        return not isinstance(value, Tensor)
    return all(_is_all_within(item, count) for item in _directly_in(value))


def row_count_of_tensors(call: Call, batch_dims: Mapping[str, int | None], dim: int, is_scripts: bool) -> int | None:
    """Count the rows of a call on plain tensors, by the first of them; None if that is none.

    Args:
        call: of a module.
        batch_dims: the option, by argument name.
        dim: of the rows, where the option names no other.
        is_scripts: the script makes the call.
    """
    tensors = [leaf for _, leaf in call.leaves if isinstance(leaf, Tensor)]
    if any(leaf.is_nested or leaf.layout is not torch.strided for leaf in tensors):
        return None  # rows of a sparse matrix are no tensors that every function takes
    names, only = [*argument_names(call.module, len(call.args)), *call.kwargs], None
    for name, value in zip(names, (*call.args, *call.kwargs.values()), strict=True):
        for _, leaf in leaves(value):
            if not isinstance(leaf, Tensor) or isinstance(leaf, nn.Parameter):
                continue
            may_be_one = leaf.dim() > 1 or (is_scripts and not leaf.is_floating_point())
            chosen = batch_dims.get(name, dim if may_be_one else None)
            if chosen is not None and -leaf.dim() <= chosen < leaf.dim():
                if leaf.shape[chosen] != 1 or name in batch_dims:
                    return leaf.shape[chosen]
                only = 1  # unless another one has more: a state of one layer, [1, B, H], comes before the rows
    return only
