"""From what a rank holds to the batch that the script sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
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


class BatchDims:
    """Which dimension the rows of a loader's tensors were seen in: that of a square one is as in other batches."""

    def __init__(self) -> None:
        """Begin before the first batch."""
        self._seen: dict[str, int] = {}

    def of(self, tensors: Sequence[tuple[str, Tensor]], drawn: int) -> dict[int, int] | None:
        """Tell where the tensors of a batch have their rows, if those of some are in dimension 1, as in texts [T, B].

        Args:
            tensors: of a batch, by where they are.
            drawn: samples that it was made of.

        Returns:
            the dimension by identity; None where none has its rows in dimension 1, or one has none at all.
        """
        fitting = {path: [dim for dim in (0, 1) if drawn in leaf.shape[dim : dim + 1]] for path, leaf in tensors}
        self._seen.update((path, dims[0]) for path, dims in fitting.items() if len(dims) == 1)
        if not all(fitting.values()):
            return None
        is_time_first = any(dims == [1] for dims in fitting.values())
        dims = {
            id(leaf): fitting[path][0] if len(fitting[path]) == 1 else self._seen.get(path, int(is_time_first))
            for path, leaf in tensors
        }
        return dims if any(dims.values()) else None


def cut(
    data: Any, world: World, drawn: int | None = None, seen: BatchDims | None = None
) -> tuple[Layout | None, dict[int, int]]:
    """Tell how a whole batch is dealt: its layout, and by identity the tensors that it applies to, in which dimension.

    Tensors of a batch that all have as many rows are batches, whatever they mean: seen whole, they are the same. If
    they do not agree, those are that have a row for each sample that was drawn, as pictures beside lists of boxes.

    Args:
        data: what the loader gave.
        world: the ranks.
        drawn: samples that the batch was made of, where that is known.
        seen: where earlier batches of the loader had their rows.
    """
    rows, among = _rows_among(data, drawn)
    plain = [(path, leaf) for path, leaf in leaves(among) if is_plain(leaf) and not leaf.requires_grad and leaf.dim()]
    dims = None if drawn is None or seen is None else seen.of(plain, drawn)
    if dims is not None:
        rows = drawn
    else:
        dims = {id(leaf): 0 for _, leaf in plain if leaf.shape[0] == rows}
    layout = None if rows is None else Layout.deal(rows, 0, world.size)
    if layout is None:
        return None, {}
    # Views of one memory stay views: a script may write to it through either.
    pointers = {id(leaf): leaf.untyped_storage().data_ptr() for _, leaf in plain if id(leaf) in dims and leaf.numel()}
    sharers = Counter(pointers.values())
    alone = {i: dim for i, dim in dims.items() if i not in pointers or sharers[pointers[i]] < 2}
    return (layout, alone) if alone else (None, {})


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


def as_dealt(
    data: Any, world: World, drawn: int | None = None, seen: BatchDims | None = None
) -> tuple[Any, int | None]:
    """Make batches of the tensors of a batch that this rank has whole, as ``cut`` says; None if it is not dealt."""
    layout, dealt = cut(data, world, drawn, seen)
    if layout is None:
        return data, None

    batches: dict[int, Tensor] = {}

    def to_batch(leaf: Tensor) -> Tensor:
        if id(leaf) not in dealt:
            return leaf
        if id(leaf) not in batches:
            its = layout.at(dealt[id(leaf)])
            batches[id(leaf)] = BatchTensor.from_local(copy_local_rows(leaf, its, world), its)
        return batches[id(leaf)]

    return mapped_tensors(to_batch, data), layout.total


def with_row_count(data: Any) -> tuple[Any, int | None]:
    """A batch that this rank has whole, and its rows."""
    return data, common_rows(data)


def copy_local_rows(tensor: Tensor, layout: Layout, world: World) -> Tensor:
    """This rank's rows, in memory of their own."""
    rows = tensor.narrow(layout.dim, *layout.span(world.rank)).clone()
    return rows.contiguous() if layout.dim and tensor.is_contiguous() else rows


def pinned(loader: DataLoader[Any]) -> Callable[[Tensor], Tensor]:
    """What ``pin_memory`` asks for."""
    if loader.pin_memory and torch.accelerator.is_available():
        return lambda tensor: tensor.pin_memory() if tensor.device.type == "cpu" else tensor
    return lambda tensor: tensor
