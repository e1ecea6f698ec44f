"""Values as a text and blocks of bytes: the memory of tensors and arrays travels by itself, once for all its views."""

from __future__ import annotations

import io
import mmap
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .batches import is_plain

_ALIGNED = 64


class _Pickler(pickle.Pickler):
    """Leaves the memory of plain tensors out."""

    def __init__(self, file: Any, blocks: list[Tensor], dealt: Callable[[Tensor], int | None]) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._take)
        self._blocks = blocks
        self._dealt = dealt
        self._storages: dict[int, int] = {}  # address -> block
        self._alive: list[torch.UntypedStorage] = []  # at these addresses
        self._tensors: dict[int, int] = {}  # id -> number
        self.buffers: list[int] = []

    def _take(self, buffer: pickle.PickleBuffer) -> None:
        raw = buffer.raw()
        self.buffers.append(self._add(torch.frombuffer(raw, dtype=torch.uint8) if len(raw) else _empty()))

    def _add(self, block: Tensor) -> int:
        self._blocks.append(block)
        return len(self._blocks) - 1

    def persistent_id(self, obj: Any) -> Any:
        """Name a plain tensor by its number, its block and its place there."""
        if not is_plain(obj) or obj.requires_grad or obj.is_quantized:
            return None
        number = self._tensors.setdefault(id(obj), len(self._tensors))
        tensor = obj.detach().resolve_conj().resolve_neg()
        if tensor.untyped_storage().nbytes() > 4 * tensor.numel() * tensor.element_size():
            tensor = tensor.clone()  # a small part of a large memory
        storage = tensor.untyped_storage()
        if storage.nbytes() == 0:
            index = self._add(_empty())
        else:
            index = self._storages.get(storage.data_ptr(), -1)
            if index < 0:
                index = self._storages[storage.data_ptr()] = self._add(_bytes_of(storage.cpu()))
                self._alive.append(storage)
        place = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
        return number, index, obj.dtype, place, obj.device.type, self._dealt(obj)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, buffers: Iterator[Any], block: Callable[[int], Tensor], keep: Any) -> None:
        super().__init__(file, buffers=buffers)
        self._block = block
        self._keep = keep
        self._copies: dict[int, Tensor] = {}  # of blocks: views of one memory stay views
        self._tensors: dict[int, Tensor] = {}

    def persistent_load(self, pid: Any) -> Any:
        """Copy what is kept of a tensor."""
        number, index, dtype, (offset, shape, stride), device, dim = pid
        if number not in self._tensors:
            block = self._block(index) if dim is not None else self._copy(index, device)
            whole = block[: len(block) // dtype.itemsize * dtype.itemsize].view(dtype)
            if len(whole):
                tensor = whole.as_strided(shape, stride, offset).to(device)
            else:
                tensor = torch.empty(shape, dtype=dtype, device=device)
            self._tensors[number] = tensor if dim is None else self._keep(tensor, dim)
        return self._tensors[number]

    def _copy(self, index: int, device: str) -> Tensor:
        if index not in self._copies:
            self._copies[index] = self._block(index).to(device, copy=True)
        return self._copies[index]


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return _empty().set_(storage)


def _empty() -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device="cpu")


def pickled(value: Any, dealt: Callable[[Tensor], int | None]) -> tuple[bytes, list[Tensor]]:
    """Give the text of a value, and the blocks of bytes that it refers to."""
    blocks: list[Tensor] = []
    body = io.BytesIO()
    pickler = _Pickler(body, blocks, dealt)
    pickler.dump(value)
    sizes = [block.numel() for block in blocks]
    return pickle.dumps((sizes, pickler.buffers, body.getvalue())), blocks


def unpickled(text: bytes, memory: mmap.mmap, keep: Callable[[Tensor, int], Any]) -> Any:
    """Make a value of its text and its blocks.

    Args:
        text: what ``pickled`` gave.
        memory: holds the blocks where ``placed`` put them; it may be written to afterwards.
        keep: copies what is kept of a tensor that is dealt along a dimension.
    """
    sizes, buffers, body = pickle.loads(text)
    offsets, _ = _offsets(sizes)

    def block(index: int) -> Tensor:
        if not sizes[index]:
            return _empty()
        return torch.frombuffer(memory, dtype=torch.uint8, offset=offsets[index], count=sizes[index])

    # Arrays own what they are made of: the slot is written to again.
    copies = (bytearray(memory[offsets[index] : offsets[index] + sizes[index]]) for index in buffers)
    return _Unpickler(io.BytesIO(body), copies, block, keep).load()


def placed(blocks: list[Tensor]) -> tuple[list[int], int]:
    """Where each block begins, and where the last one ends."""
    return _offsets([block.numel() for block in blocks])


def _offsets(sizes: list[int]) -> tuple[list[int], int]:
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // _ALIGNED) * _ALIGNED
    return offsets, end
