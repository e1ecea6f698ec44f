"""The board of a job: what its ranks leave for each other in its store, under names that are used once.

None of it is a collective: ranks come to it when they do, from whichever thread.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, not in its __all__

from . import attempt
from .store_waits import Waiting

_PIECE = 4 * 2**20  # bytes; the store takes 8 MiB as one value, and drops the connection of who sends more (torch 2.13)
_LONGEST = 2**14  # bytes of what a rank posts that stand beside those of all others
_POSTED = struct.Struct("!IIQ")  # before them: the rank, their pieces if they stand elsewhere, their length if not
_CUT = b"\x00ddp_patch, in pieces: "  # before their number, in place of a value that is cut


class JobStore:
    """This rank's side of it."""

    def __init__(self, rank: int, world_size: int, timeout: timedelta, is_over: Callable[[], bool]) -> None:
        """Connect to the store that the launcher made.

        Args:
            rank: of this process.
            world_size: of the job.
            timeout: of a request.
            is_over: tells that nothing will come any more, to those that wait.
        """
        self._rank = rank
        self._world_size = world_size
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self._store = TCPStore(address, port, is_master=False, timeout=timeout)
        self._waiting = Waiting(self._store, is_over)
        # A restarted job finds the keys of the attempt before in the agent's store.
        self._attempt = attempt.name()
        self._cut: dict[str, int] = {}  # name of what was put and is not dropped yet -> its pieces, if it has some

    def put(self, name: str, value: bytes) -> None:
        """Leave something of any size under a name that is used once, from whichever thread."""
        count = self._put(name, value)
        if count:
            self._cut[name] = count

    def _put(self, name: str, value: bytes) -> int:
        count = 0
        if len(value) > _PIECE or value.startswith(_CUT):
            count = self._put_pieces(name, value)
            value = b"%b%d" % (_CUT, count)
        self._set(name, value)
        return count

    def _put_pieces(self, name: str, value: bytes) -> int:
        count = -(-len(value) // _PIECE)
        for piece in range(count):
            self._set(_piece(name, piece), value[piece * _PIECE : (piece + 1) * _PIECE])
        return count

    def _set(self, name: str, value: bytes) -> None:
        self._store.set(self._key(name), value)  # type: ignore[arg-type]  # takes bytes, torch 2.13

    def read(self, names: list[str]) -> list[bytes]:
        """Give what is there under these names, with one request but for what is large."""
        values = self._store.multi_get([self._key(name) for name in names])
        return [self.whole(name, value) for name, value in zip(names, values, strict=True)]

    def whole(self, name: str, value: bytes) -> bytes:
        """Give what was put under a name, of which the store holds this."""
        return self._joined(name, _pieces(value)) or value

    def _joined(self, name: str, count: int) -> bytes:
        return b"".join(self._store.get(self._key(_piece(name, piece))) for piece in range(count))

    def come(self, counter: str, count: int, name: str) -> None:
        """Come to where so many ranks come; the last one leaves an entry, so that it is enough to wait for that.

        Args:
            counter: of all that came.
            count: that it has when all have come.
            name: of the entry.
        """
        if self._store.add(self._key(counter), 1) == count:
            self._store.set(self._key(name), "1")

    def drop(self, names: list[str]) -> None:
        """Forget what nobody asks for any more."""
        for name in names:
            self._drop(name, self._cut.pop(name, 0))

    def _drop(self, name: str, count: int) -> None:
        for part in (name, *(_piece(name, piece) for piece in range(count))):
            self._store.delete_key(self._key(part))

    def wait(self, name: str, seconds: float) -> bytes | None:
        """Wait for what another rank puts under a name; None if it does not in time.

        Raises:
            RuntimeError: if the store is gone.
        """
        return self._waiting.get(self._key(name), seconds)

    def move(self, place: bytes) -> None:
        """Leave word of where this rank is, in place of what it left before.

        Raises:
            RuntimeError: if the store is gone.
        """
        self._store.set(self._key(f"place/{self._rank}"), place)  # type: ignore[arg-type]  # takes bytes, torch 2.13

    def post(self, name: str, value: bytes) -> None:
        """Leave this rank's part of what ``wait_until_all_posted`` gives: one entry has that of all."""
        count = self._put_pieces(f"{name}/{self._rank}", value) if len(value) > _LONGEST else 0
        own = _POSTED.pack(self._rank, count, 0 if count else len(value)) + (b"" if count else value)
        self._store.append(self._key(name), own)  # type: ignore[attr-defined]  # its stub lacks it, torch 2.13
        self.come(f"{name}/came", self._world_size, f"{name}/all")

    def posted(self, name: str) -> list[bytes] | None:
        """Give what every rank has posted under a name; None while some have not.

        Raises:
            RuntimeError: if the store is gone.
        """
        return self._read_once(name) if self._store.check([self._key(f"{name}/all")]) else None

    def propose(self, name: str, value: str) -> str:
        """Leave something where no rank has left anything yet, and give what is there.

        Raises:
            RuntimeError: if the store is gone.
        """
        return str(self._store.compare_set(self._key(name), "", value).decode())

    def listen(self, name: str, then: Callable[[], object]) -> SimpleQueue[Any]:
        """Have what some rank proposes under a name come to a queue.

        Args:
            name: of it.
            then: called from another thread when it has come.
        """
        return self._waiting.ask(self._key(name), then)

    def _read_once(self, name: str) -> list[bytes]:
        every, at, posted, cut = self._store.get(self._key(name)), 0, dict[int, bytes](), dict[int, int]()
        while at < len(every):
            rank, count, length = _POSTED.unpack_from(every, at)
            at += _POSTED.size + length
            posted[rank] = self._joined(f"{name}/{rank}", count) if count else every[at - length : at]
            cut[rank] = count
        if self._store.add(self._key(f"{name}/read"), 1) == self._world_size:
            self.drop([_piece(f"{name}/{rank}", piece) for rank, count in cut.items() for piece in range(count)])
            self.drop([name, *(f"{name}/{end}" for end in ("came", "all", "read"))])
        return [posted[rank] for rank in range(self._world_size)]

    def drop_once(self, name: str, entries: list[str]) -> None:
        """Forget entries under a name once every rank has come by."""
        read = f"{name}/read"
        if self._store.add(self._key(read), 1) == self._world_size:
            self.drop([*entries, read])

    def _wait_until_all_came(self, where: str, wait: float) -> bool:
        """Come to a point, and tell whether all ranks do within a time.

        Raises:
            RuntimeError: if the store is gone.
        """
        self.come(where, self._world_size, f"{where}/all")
        return wait > 0 and self._waiting.get(self._key(f"{where}/all"), wait) is not None

    def close(self) -> None:
        """Wait for nothing any more."""
        self._waiting.close()

    def _key(self, name: str) -> str:
        return f"ddp_patch/{name}/{self._attempt}"


def _piece(name: str, number: int) -> str:
    return f"{name}/piece {number}"


def _pieces(value: bytes) -> int:
    """How many pieces a value of the store stands for; 0 if it is whole."""
    count = value.removeprefix(_CUT)
    return int(count) if count != value and count.isdigit() else 0
