"""Packed sequences of a batch: each rank packs its own; whoever looks at the tensors gets those of the batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import rnn
from torch.nn.utils.rnn import PackedSequence

from ..structure import Opaque
from .forms import full_tensor, to_local
from .layout import Layout
from .tensor import BatchTensor
from .world import World

# As they were before the session patched them.
_pack, _pad = rnn.pack_padded_sequence, rnn.pad_packed_sequence


class PackedRows(PackedSequence, Opaque):
    """A packed batch of which this rank holds its own sequences, packed by themselves."""

    local_sequence: PackedSequence
    order: PackedSequence  # of the whole batch; its data is of no use
    layout: Layout  # of the batch; its dimension is of no use
    _whole: PackedSequence | None

    @staticmethod
    def of(local: PackedSequence, order: PackedSequence, layout: Layout) -> PackedRows:
        """Make a packed batch of this rank's packed sequences."""
        packed: PackedRows = tuple.__new__(PackedRows, tuple.__iter__(local))
        packed.local_sequence, packed.order, packed.layout, packed._whole = local, order, layout, None
        return packed

    @property
    def longest(self) -> int:
        """Length of the longest sequence of the batch."""
        return int(self.order.batch_sizes.shape[0])

    @property
    def lengths(self) -> Tensor:
        """Lengths of all sequences, on the host."""
        sizes = self.order.batch_sizes
        lengths = (torch.arange(int(sizes[0]), device="cpu")[:, None] < sizes).sum(1)
        places = self.order.unsorted_indices
        return lengths if places is None else lengths[places]

    def whole(self) -> PackedSequence:
        """The packed batch as one process has it."""
        if self._whole is None:
            rows, _ = _pad(self.local_sequence, batch_first=True, total_length=self.longest)
            padded = full_tensor(BatchTensor.from_local(rows, self.layout.at(0)))
            is_sorted = self.order.sorted_indices is None
            self._whole = _pack(padded, self.lengths, batch_first=True, enforce_sorted=is_sorted)
        return self._whole

    @classmethod
    def _make(cls, iterable: Any) -> PackedSequence:  # type: ignore[override]
        return tuple.__new__(PackedSequence, iterable)

    def _replace(self, **changed: Any) -> PackedSequence:  # type: ignore[override]  # its tensors are the whole's
        """Replace tensors of the batch."""
        return self.whole()._replace(**changed)

    def pin_memory(self) -> PackedSequence:  # type: ignore[override]
        """Give the batch in pinned memory."""
        return self.whole().pin_memory()

    def to(self, *args: Any, **kwargs: Any) -> PackedRows:
        """The same with data on another device or of another type."""
        local = self.local_sequence.to(*args, **kwargs)
        return self if local is self.local_sequence else PackedRows.of(local, self.order, self.layout)

    data = property(lambda self: self.whole().data)
    batch_sizes = property(lambda self: self.order.batch_sizes)
    sorted_indices = property(lambda self: self.whole().sorted_indices)
    unsorted_indices = property(lambda self: self.whole().unsorted_indices)

    def __iter__(self) -> Iterator[Any]:
        """The four tensors."""
        return iter(self.whole())

    def __getitem__(self, index: Any) -> Any:
        """One of them."""
        return tuple(self.whole())[index]


def pack(input: Any, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True) -> PackedSequence:
    """``pack_padded_sequence`` of a batch, or of a plain tensor whose lengths are one."""
    dim = 0 if batch_first else 1
    if not isinstance(input, BatchTensor) or input._layout.dim != dim:
        whole = full_tensor(input) if isinstance(input, BatchTensor) else input
        return _pack(whole, _on_host(lengths), batch_first, enforce_sorted)
    layout = input._layout
    counts = torch.as_tensor(_on_host(lengths), dtype=torch.int64, device="cpu")
    # One element for each, which says what torch says of wrong lengths, on every rank.
    order = _pack(torch.empty(layout.total, input.shape[1 - dim], device="cpu"), counts, True, enforce_sorted)
    local = _pack(to_local(input), layout.rows(World.get().rank).of(counts, 0), batch_first, enforce_sorted)
    return PackedRows.of(local, order, layout)


def pad(
    sequence: PackedRows, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """``pad_packed_sequence``: to the longest sequence of the batch."""
    if total_length is not None and total_length < sequence.longest:
        raise ValueError(
            "Expected total_length to be at least the length of the longest sequence in input, but got "
            f"total_length={total_length} and max sequence length being {sequence.longest}"
        )
    rows, _ = _pad(sequence.local_sequence, batch_first, padding_value, total_length or sequence.longest)
    lengths = BatchTensor.from_full(sequence.lengths, sequence.layout.at(0))
    return BatchTensor.from_local(rows, sequence.layout.at(0 if batch_first else 1)), lengths


def _on_host(lengths: Any) -> Any:
    """Lengths as every rank has them. They tell how sequences are packed, and mix none of them."""
    seen = World.get().observation
    if not isinstance(lengths, BatchTensor):
        return lengths
    if seen is None:
        return full_tensor(lengths)
    with seen.paused():
        return full_tensor(lengths)
