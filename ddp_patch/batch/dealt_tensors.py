"""Tells whether the ranks deal rows of the same tensors, without a collective of its own.

What a script without a loader gives to a model, every rank is to hold whole. Where the ranks hold different ones, as
when processes that each rank has started put batches into a queue, what is computed is of no rank's batch. So checksums
of the tensors travel with gradients (``gradients.flags``), as whole numbers beside their squares: the mean of the
squares is the square of the mean only where all ranks have the same, so all of them find the same.
"""

from __future__ import annotations

import collections
import ctypes
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import LockstepError
from ..ledger import script_line
from .versions import version

if TYPE_CHECKING:
    from .world import World

_BITS, _PARTS = 6, 3  # of a checksum
LENGTH = 2 * _PARTS
_MOST_RANKS = 512  # beyond which sums of squares are not told exactly
_KINDS = {torch.float32: struct.Struct(f"{LENGTH}f"), torch.float64: struct.Struct(f"{LENGTH}d")}  # in memory
_MOST_ENTRIES = 1024  # of a tensor that are looked at
_KEPT = 16  # tensors, to tell which of them differs


class DealtTensors:
    """What was dealt in one session, and what the ranks told each other of it."""

    def __init__(self) -> None:
        """Begin before anything was dealt."""
        self._sum = 0
        self.has_any = False  # some plain tensor was dealt
        self._only_integers = False  # floats were seen to differ by rounding, as accelerators' do
        self._latest: collections.deque[tuple[str, Tensor]] = collections.deque(maxlen=_KEPT)
        self._told: Tensor | None = None
        self._is_paused = False
        # To a call that is at work: names, tensors, their versions, and samples of them.
        self._given: list[tuple[str, Tensor, int, Tensor]] = []

    def note(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Note tensors on the host that a call is given: on every rank, in the same order.

        Args:
            tensors: by what names them.
        """
        for name, tensor in () if self._is_paused else tensors:
            if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_quantized:
                continue
            sample = _sample(tensor)
            if not (self._only_integers and sample.is_floating_point()):
                self._given.append((name, tensor, version(tensor), sample))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Surround what ranks do by themselves, with tensors of their own."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    def settle(self) -> None:
        """The call is over: count what it was given, but for what it wrote to, which may have held anything."""
        for name, tensor, before, sample in self._given:
            if version(tensor) == before:
                self.has_any = True
                self._latest.append((name, sample))
                self._sum = _checksum(sample, self._sum)
        self._given.clear()

    def write(self, place: Tensor, size: int) -> None:
        """Write what this rank has to tell, to ``LENGTH`` numbers on the host.

        Args:
            place: whose mean over the ranks ``arrived`` gets.
            size: of the world.
        """
        kind = _KINDS.get(place.dtype)
        if place.device.type == "cpu" and kind is not None and size <= _MOST_RANKS:
            parts = [(self._sum >> (_BITS * part)) % 2**_BITS for part in range(_PARTS)]
            numbers = kind.pack(*parts, *(part * part for part in parts))
            ctypes.memmove(place.data_ptr(), numbers, len(numbers))

    def arrived(self, means: Tensor) -> None:
        """Take what the ranks told: as ``write`` wrote it, averaged."""
        if means.device.type == "cpu" and means.dtype in _KINDS:
            self._told = means

    def check(self, world: World) -> None:
        """Compare what arrived. Every rank comes here.

        Args:
            world: the ranks.

        Raises:
            LockstepError: on every rank, when they hold different tensors.
        """
        told, self._told = self._told, None
        if told is None:
            return
        # Sums of whole numbers: what each rank divided before they were added was rounded.
        numbers = _KINDS[told.dtype].unpack(ctypes.string_at(told.data_ptr(), told.nbytes))
        sums = [round(mean * world.size) for mean in numbers]
        if all(part * part == square * world.size for part, square in zip(sums[:_PARTS], sums[_PARTS:], strict=True)):
            return
        gathered = world.share([[_told(name, sample) for name, sample in self._latest]])
        found = _differing([entry[0] for entry in gathered])
        if found is None:
            self._sum, self._only_integers = 0, True
            world.ledger.note("plain tensors of the script differ between ranks by rounding: each rank takes its own")
            return
        raise LockstepError(
            f"{script_line()}: {found}, and differs between ranks, so the batch would be of no rank's values. Draw it "
            "from torch, numpy or random, whose generators agree on all ranks, and take what processes or threads put "
            "into a queue from rank 0's: get = ddp_patch.read_once(queue.get)."
        )


_Told = tuple[str, str, list[int], list[Any], int]  # name, type, shape, entries and checksum of a sample


def _told(name: str, sample: Tensor) -> _Told:
    dtype = str(sample.dtype).removeprefix("torch.")
    return name, dtype, list(sample.shape), sample.flatten().tolist(), _checksum(sample, 0)


def _checksum(sample: Tensor, before: int) -> int:
    return zlib.crc32(ctypes.string_at(sample.data_ptr(), sample.nbytes), before)


def _sample(tensor: Tensor) -> Tensor:
    """Copy some entries of a tensor: of its first row and its last one."""
    entries = tensor.detach().resolve_conj().resolve_neg()
    entries = entries[:: max(1, len(entries) - 1)]
    for dim in range(1, entries.dim()):
        if entries.numel() > _MOST_ENTRIES:
            step = -(-entries.numel() // _MOST_ENTRIES)
            entries = entries[(slice(None),) * dim + (slice(None, None, step),)]
    real = torch.view_as_real(entries) if entries.is_complex() else entries
    return real.clone(memory_format=torch.contiguous_format)


def _differing(by_rank: Sequence[list[_Told]]) -> str | None:
    """Name the first tensor that differs by more than rounding, and tell what each rank has there."""
    if any([told[0] for told in entries] != [told[0] for told in by_rank[0]] for entries in by_rank):
        return f"what a model is given is {' and '.join(str([told[0] for told in entries]) for entries in by_rank)}"
    has_rounded = False
    for of_ranks in zip(*by_rank, strict=True):
        if all(told[-1] == of_ranks[0][-1] for told in of_ranks):
            continue
        if not all(_is_near(told, of_ranks[0]) for told in of_ranks):
            shown = ", ".join(f"{told[3][:3]} on rank {rank}" for rank, told in enumerate(of_ranks))
            return f"{of_ranks[0][0]} begins with {shown}"
        has_rounded = True
    return None if has_rounded else "what a model was given in an earlier call"


def _is_near(told: _Told, first: _Told) -> bool:
    """Tell whether two samples differ by rounding alone; NaNs are alike."""
    if told[1:3] != first[1:3]:
        return False
    dtype = getattr(torch, first[1])
    if not dtype.is_floating_point:
        return told[3] == first[3]
    own, other = torch.tensor(told[3], dtype=torch.float64), torch.tensor(first[3], dtype=torch.float64)
    tolerance = torch.finfo(dtype).eps ** 0.5 * other.nan_to_num(0, 0, 0).abs().max()
    return torch.allclose(own, other, rtol=0, atol=float(tolerance), equal_nan=True)
