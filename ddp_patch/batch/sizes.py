"""How many rows a batch has, as a forward that runs on batches is told: what it makes of that size is one as well.

``out = torch.zeros(time, x.size(0), classes)``, into which a forward writes step by step, would be plain otherwise, and
what is written into it gathered.
"""

from __future__ import annotations

from typing import Any

import torch

from ..structure import leaves, map_leaves
from .layout import Layout

_HOLDING = (tuple, list, torch.Size)
_MOST_PIECES = 256  # that a batch is joined of


class BatchSize(int):
    """The size of a batch along its rows, or several times that; what else is calculated with it is a number."""

    layout: Layout

    @classmethod
    def of(cls, layout: Layout) -> BatchSize:
        """Give that of batches that are dealt in a way."""
        size = cls(layout.total)
        size.layout = layout
        return size

    def __mul__(self, other: Any) -> Any:
        """As ``torch.zeros(batch * time, width)`` has it: made of ``[batch, time]`` or ``[time, batch]``."""
        layout = self.layout
        if type(other) is not int or other < 1 or layout.dim > 1 or layout.dim * other > _MOST_PIECES:
            return int(self) * other
        return BatchSize.of(layout.times(other, 0) if layout.dim == 0 else layout.repeated(other, 0))

    __rmul__ = __mul__

    def __reduce__(self) -> Any:
        """Copies are numbers."""
        return int, (int(self),)


def observed_sizes(layout: Layout, answer: Any, dims: int, dim: int | None) -> Any:
    """Give the sizes of a batch to a forward that runs on batches.

    Args:
        layout: of the batch.
        answer: all of its sizes, or one.
        dims: how many there are.
        dim: of that one.
    """
    at = layout.dim
    if dim is not None:
        return BatchSize.of(layout) if dim % dims == at else answer
    return torch.Size([*answer[:at], BatchSize.of(layout), *answer[at + 1 :]])


def numbers(value: Any) -> Any:
    """Give functions of torch's plain numbers."""
    if type(value) is BatchSize:
        return int(value)
    if type(value) in _HOLDING:
        items = [numbers(item) for item in value]
        return value if all(map(_is, items, value)) else type(value)(items)
    if type(value) is slice:
        return slice(numbers(value.start), numbers(value.stop), numbers(value.step))
    return value


def without_batch_sizes(result: Any) -> Any:
    """Give the script what a forward returns, with plain numbers."""
    return map_leaves(numbers, result) if any(type(leaf) is BatchSize for _, leaf in leaves(result)) else result


def cut(sizes: Any, rank: int) -> tuple[list[int], Layout] | None:
    """Give the sizes of a rank's rows, and how they are dealt; None if not exactly one size is that of a batch."""
    places = [at for at, size in enumerate(sizes) if type(size) is BatchSize]
    if len(places) != 1:
        return None
    layout = sizes[places[0]].layout.at(places[0])
    local_sizes = [*sizes]
    local_sizes[places[0]] = layout.counts[rank]
    return local_sizes, layout


def _is(one: Any, other: Any) -> bool:
    return one is other
