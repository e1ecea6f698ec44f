"""From the rank that reads for a host to the others there: headers by socket, values through shared memory.

No collective takes part, so a thread of the script's may read ahead. The memory has no name, so nothing is left behind
however a process ends, and a rank that is gone is an error at once, not a wait.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import socket
import struct
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from ..batch.layout import Layout
from ..batch.tensor import BatchTensor
from ..batch.world import World
from ..effects.scratch import make_folder
from ..errors import LockstepError
from ..job import hosts
from ..job.strangers import refuse_strangers
from . import memory
from .batches import copy_local_rows
from .pickling import pickled, placed, unpickled

_HEADER = struct.Struct("<QQB")  # bytes of the pickle, bytes of the slot, 1 if a descriptor of new memory follows
_LONGEST = 103  # bytes of the name of a socket (unix(7); 107 on Linux)
_counts = itertools.count(1)


class NotPortableError(Exception):
    """A value that cannot be pickled."""


class Channel:
    """Connects the ranks of one host. Values go in two slots in turn, each used again once all have copied it.

    Every value has an address, the iterator that it is for, since threads may read in another order on another rank.
    """

    def __init__(self, world: World, local_rank: int, timeout: float) -> None:
        """Connect. Every rank comes here together."""
        self.is_reader = local_rank == 0
        self._world = world
        self._sockets: list[socket.socket] = []
        self._slots: list[mmap.mmap | None] = [None, None]
        self._unread = [False, False]  # slots that the others may still be copying
        self._turn = 0
        self._sending = threading.Lock()
        self._arrival = threading.Condition()
        self._arrived: dict[str, deque[Any]] = {}  # values that nobody has asked for yet
        self._is_receiving = False  # one thread does, for all
        self._failure: Exception | None = None
        server, folder = None, ""
        if self.is_reader:
            folder = make_folder(prefix="ddp_patch-")
            if len(f"{folder}/reader".encode()) > _LONGEST:
                os.rmdir(folder)
                folder = make_folder(prefix="ddp_patch-", dir="/tmp")
            server = socket.socket(socket.AF_UNIX)
            server.settimeout(timeout)
            server.bind(f"{folder}/reader")
            server.listen(world.size)
        try:
            # Not by a collective: a thread of the script's may be the first to read.
            entries = world.exchange(f"hosts of channel {next(_counts)}", [hosts.host(), local_rank, folder])
            here = [entry for entry in entries if entry[0] == hosts.host()]
            if server is not None:
                for _ in range(len(here) - 1):
                    connection, _ = server.accept()
                    connection.settimeout(timeout)
                    refuse_strangers(connection)
                    self._sockets.append(connection)
            else:
                reader = socket.socket(socket.AF_UNIX)
                reader.settimeout(timeout)
                reader.connect(f"{next(entry[2] for entry in here if entry[1] == 0)}/reader")
                refuse_strangers(reader)  # the folder was told through the store, where others may write
                self._sockets.append(reader)
        finally:
            if server is not None:
                server.close()
                Path(folder, "reader").unlink(missing_ok=True)
                Path(folder).rmdir()

    # --- the reader's end -------------------------------------------------------------------------------------------

    def send(self, address: str, value: Any, dealt: Callable[[Tensor], int | None]) -> None:
        """Hand a value to the other ranks of this host.

        Args:
            address: of the iterator that it is for.
            value: a structure of tensors, arrays and other objects that can be pickled.
            dealt: tells along which dimension every rank keeps its own rows only; None of what each has whole.

        Raises:
            NotPortableError: when it cannot be pickled, before anything is sent.
            LockstepError: when another rank is gone.
        """
        try:
            text, blocks = pickled((address, value), dealt)
        except Exception as error:
            raise NotPortableError(f"{type(error).__name__}: {error}") from error
        with self._sending:
            self._send(text, blocks)

    def _send(self, text: bytes, blocks: list[Tensor]) -> None:
        offsets, size = placed(blocks)
        slot = self._turn % 2
        if self._unread[slot]:
            for connection in self._sockets:
                self._receive_bytes(connection, 1)
        mapped = self._slots[slot]
        descriptor = None
        if mapped is None or len(mapped) < size:
            room = max(size * 3 // 2, 1 << 16)
            with self._file_of(room) as file:
                mapped = self._slots[slot] = mmap.mmap(file.fileno(), room)
                descriptor = os.dup(file.fileno())
        for offset, block in zip(offsets, blocks, strict=True):
            if block.numel():
                torch.frombuffer(mapped, dtype=torch.uint8, offset=offset, count=block.numel()).copy_(block)
        header = _HEADER.pack(len(text), len(mapped), descriptor is not None)
        try:
            for connection in self._sockets:
                connection.sendall(header)
                if descriptor is not None:
                    socket.send_fds(connection, [b"\0"], [descriptor])
                connection.sendall(text)
        except OSError as error:
            raise self._is_gone(error) from error
        finally:
            if descriptor is not None:
                os.close(descriptor)
        self._unread[slot] = True
        self._turn += 1

    def _file_of(self, size: int) -> IO[bytes]:
        """Make a file with room for a value.

        Raises:
            LockstepError: on every rank, when there is no room: the others wait for the batch.
        """
        try:
            return memory.with_room(size)
        except OSError as error:
            raise self._world.one_thread.refuse(
                f"A batch of {size:,} bytes could not be handed to the other ranks of this host, since neither "
                f"{memory.SHARED} nor {tempfile.gettempdir()} has room for it ({error}). Make room there, or write "
                "loader = ddp_patch.shard_batch(loader), so that each rank loads its own rows."
            ) from error

    # --- the others' end --------------------------------------------------------------------------------------------

    def receive(self, address: str) -> Any:
        """Wait for the next value for an iterator.

        Raises:
            LockstepError: when the reader is gone.
        """
        while True:
            with self._arrival:
                waiting = self._arrived.get(address)
                if waiting:
                    value = waiting.popleft()
                    if not waiting:
                        del self._arrived[address]  # each epoch has another
                    return value
                if self._failure is not None:
                    raise self._failure
                if self._is_receiving:
                    self._arrival.wait()
                    continue
                self._is_receiving = True
            try:
                found, value = self._receive()
            except Exception as error:
                with self._arrival:
                    self._is_receiving, self._failure = False, error
                    self._arrival.notify_all()
                raise
            with self._arrival:
                self._is_receiving = False
                self._arrived.setdefault(found, deque()).append(value)
                self._arrival.notify_all()

    def _receive(self) -> Any:
        (reader,) = self._sockets
        length, room, is_new = _HEADER.unpack(self._receive_bytes(reader, _HEADER.size))
        slot = self._turn % 2
        if is_new:
            try:
                _, descriptors, _, _ = socket.recv_fds(reader, 1, 1)
            except OSError as error:
                raise self._is_gone(error) from error
            self._slots[slot] = mmap.mmap(descriptors[0], room)
            os.close(descriptors[0])
        mapped = self._slots[slot]
        assert mapped is not None
        value = unpickled(self._receive_bytes(reader, length), mapped, self._kept)
        with contextlib.suppress(OSError):  # it may have ended with this value; the next one will tell
            reader.sendall(b"\0")
        self._turn += 1
        return value

    def _kept(self, tensor: Tensor, dim: int) -> Tensor:
        layout = Layout.deal(tensor.shape[dim], dim, self._world.size)
        assert layout is not None
        return BatchTensor.from_local(copy_local_rows(tensor, layout, self._world), layout)

    def close(self) -> None:
        """Hang up."""
        for connection in self._sockets:
            connection.close()

    def _receive_bytes(self, connection: socket.socket, count: int) -> bytes:
        received = bytearray()
        try:
            while len(received) < count:
                part = connection.recv(count - len(received))
                if not part:
                    raise ConnectionError("the connection was closed")
                received += part
        except OSError as error:
            raise self._is_gone(error) from error
        return bytes(received)

    def _is_gone(self, error: OSError) -> Exception:
        who = "another rank of this host" if self.is_reader else "the rank that reads for this host"
        why = LockstepError(f"A batch could not be handed over, since {who} ended or is late ({error}).")
        explained = self._world.explain(RuntimeError(str(why)))  # the first rank that failed may have told
        return explained if isinstance(explained, LockstepError) else why
