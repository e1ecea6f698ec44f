"""From what a rank holds to the batch that the script sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ..batch.layout import Layout
from ..batch.tensor import BatchTensor
from ..batch.world import World
from ..structure import leaves, map_items, map_leaves


def common_rows(data: Any) -> int | None:
    """Size of a batch that came whole, if all its tensors agree on it."""
    tensors = [leaf for _, leaf in leaves(data) if isinstance(leaf, Tensor)]
    sizes = {None if leaf.is_nested or leaf.dim() == 0 else leaf.shape[0] for leaf in tensors}
    return sizes.pop() if len(sizes) == 1 else None


def is_plain(leaf: Any) -> bool:
    """Tell tensors of ordinary memory."""
    return type(leaf) is Tensor and leaf.layout is torch.strided and not leaf.is_nested


def cut(data: Any, world: World, drawn: int | None = None) -> tuple[Layout | None, set[int]]:
    """Tell how a whole batch is dealt: its layout, and the ids of the tensors that it applies to.

    Tensors of a batch that all have as many rows are batches, whatever they mean: seen whole, they are the same. If
    they do not agree, those are that have a row for each sample that was drawn, as pictures beside lists of boxes.

    Args:
        data: what the loader gave.
        world: the ranks.
        drawn: samples that the batch was made of, where that is known.
    """
    rows, among = _rows_among(data, drawn)
    layout = None if rows is None else Layout.deal(rows, 0, world.size)
    if layout is None:
        return None, set()
    plain = {
        id(leaf): leaf
        for _, leaf in leaves(among)
        if is_plain(leaf) and not leaf.requires_grad and leaf.dim() and leaf.shape[0] == rows
    }
    # Views of one memory stay views: a script may write to it through either.
    sharers = Counter(leaf.untyped_storage().data_ptr() for leaf in plain.values() if leaf.numel())
    alone = {i for i, leaf in plain.items() if sharers[leaf.untyped_storage().data_ptr()] < 2}
    return (layout, alone) if alone else (None, set())


def batch_size_of(data: Any, drawn: int | None) -> int | None:
    """Size of a batch that came whole, whether or not there are tensors that have a row for each sample.

    Args:
        data: what the loader gave.
        drawn: samples that it was made of, where that is known.
    """
    rows, among = _rows_among(data, drawn)
    return rows if _tensors(among) < _tensors(data) else common_rows(data)


def _rows_among(data: Any, drawn: int | None) -> tuple[int | None, Any]:
    """Give the size of a batch, and what of it may hold tensors that have so many rows."""
    if drawn is not None and _tensors(data):
        # The outermost list may be of a tensor for each input, though there are as many samples.
        beside = map_items(lambda item: _not_per_sample(item, drawn), data)
        if not _tensors(beside):
            return drawn, None
    rows = common_rows(data)
    return (rows, data) if rows is not None or drawn is None else (drawn, _not_per_sample(data, drawn))


def _tensors(data: Any) -> int:
    return sum(isinstance(leaf, Tensor) for _, leaf in leaves(data))


def _not_per_sample(data: Any, drawn: int) -> Any:
    """Leave out the lists that hold an entry for each sample."""
    if isinstance(data, (list, tuple)) and len(data) == drawn:
        return None
    return map_items(lambda item: _not_per_sample(item, drawn), data)


def mapped_tensors(function: Callable[[Any], Any], data: Any) -> Any:
    """Rebuild a batch with other tensors."""
    return map_leaves(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, data)


def as_dealt(data: Any, world: World, drawn: int | None = None) -> tuple[Any, int | None]:
    """Make batches of the tensors of a batch that this rank has whole, as ``cut`` says; None if it is not dealt."""
    layout, dealt = cut(data, world, drawn)
    if layout is None:
        return data, None

    batches: dict[int, Tensor] = {}

    def to_batch(leaf: Tensor) -> Tensor:
        if id(leaf) not in dealt:
            return leaf
        if id(leaf) not in batches:
            batches[id(leaf)] = BatchTensor.from_local(copy_local_rows(leaf, layout, world), layout)
        return batches[id(leaf)]

    return mapped_tensors(to_batch, data), layout.total


def with_row_count(data: Any) -> tuple[Any, int | None]:
    """A batch that this rank has whole, and its rows."""
    return data, common_rows(data)


def copy_local_rows(tensor: Tensor, layout: Layout, world: World) -> Tensor:
    """This rank's rows, in memory of their own."""
    start, count = layout.span(world.rank)
    return tensor[start : start + count].clone()


def pinned(loader: DataLoader[Any]) -> Callable[[Tensor], Tensor]:
    """What ``pin_memory`` asks for."""
    if loader.pin_memory and torch.accelerator.is_available():
        return lambda tensor: tensor.pin_memory() if tensor.device.type == "cpu" else tensor
    return lambda tensor: tensor
