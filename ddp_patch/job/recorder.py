"""The last points of a rank, with their lines and times, in a file that survives its process.

After torch's flight recorder (torch/csrc/distributed/c10d/FlightRecorder.hpp), which keeps the collectives of NCCL;
here are all points at which ranks wait for each other, on any backend.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import OptionError
from ..ledger import script_line

KEPT = 4096  # points
_POINT = struct.Struct("<QqqQ64s64s")  # count, entered, left (nanoseconds, 0: not yet), bytes, what, line
_LEFT_AT = 16  # bytes into it
_HEADER = 4096  # bytes
_VERSION = 1


@dataclass(frozen=True)
class TracePoint:
    """One point that a rank came to."""

    what: str
    line: str = ""  # of the script, where it is known
    size: int = 0  # of what is sent, in bytes where it is a tensor
    entered: int = 0  # nanoseconds of the host's monotonic clock
    left: int = 0  # 0: it has not


@dataclass(frozen=True)
class Trace:
    """What a rank has recorded."""

    rank: int
    world_size: int
    host: str
    run: str  # alike on all ranks of a run
    began: float  # seconds since the epoch
    points: dict[int, TracePoint] = field(default_factory=dict)  # by number; the last ones


class Recorder:
    """Writes the points of this rank as it comes to them, each over the oldest one. No system call."""

    def __init__(self, folder: str, rank: int, **header: Any) -> None:
        """Make this rank's file.

        Args:
            folder: where it lies; made if it is not there.
            rank: of this process.
            header: what else ``Trace`` has, but its points.

        Raises:
            OptionError: if it cannot be made there.
        """
        path = Path(folder) / f"rank{rank}.trace"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)  # a process of the run before may still write to it
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            os.ftruncate(descriptor, _HEADER + KEPT * _POINT.size)
            self._memory = mmap.mmap(descriptor, 0)
            os.close(descriptor)
        except OSError as error:
            raise OptionError(
                f"trace={folder!r} cannot be used: {error}. Name a folder that can be written to."
            ) from error
        encoded = json.dumps({"version": _VERSION, "rank": rank, **header}).encode()
        self._memory[: len(encoded)] = encoded
        self._open: list[int] = []  # where points begin that were not left

    def enter(self, count: int, what: str, size: int, detail: Sequence[Any]) -> None:
        """Write down a point.

        Args:
            count: its number.
            what: its kind.
            size: of what is sent.
            detail: what it is about, for people.
        """
        at = _HEADER + count % KEPT * _POINT.size
        shown = f"{what}({', '.join(map(_short, detail))})" if detail else what
        line = script_line().encode()[-64:]
        _POINT.pack_into(self._memory, at, count, time.monotonic_ns(), 0, size, shown.encode()[:64], line)
        self._open.append(at)

    def leave(self) -> None:
        """Write down that the last one is over."""
        if self._open:
            self._memory[(at := self._open.pop() + _LEFT_AT) : at + 8] = time.monotonic_ns().to_bytes(8, "little")


def read(path: Path) -> Trace:
    """Read what a rank wrote, also one that still writes or was killed.

    Raises:
        ValueError: if it is not the file of a recorder.
    """
    content = path.read_bytes()
    header = json.loads(content[:_HEADER].rstrip(b"\0"))
    if header.pop("version") != _VERSION:
        raise ValueError("another version of ddp_patch wrote it")
    points = {}
    for count, entered, left, size, what, line in _POINT.iter_unpack(content[_HEADER:]):
        if count:
            points[count] = TracePoint(_text(what), _text(line), size, entered, left)
    return Trace(**header, points=dict(sorted(points.items())))


def _short(part: Any) -> str:
    text = str(part)
    return repr(os.path.basename(text) or text)


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode(errors="replace")
