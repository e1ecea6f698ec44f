"""What a rank writes down: one event a line while the script runs, tensors when it ends.

The files are opened before ddp_patch is, and written through their descriptors: what it does about files is not met.
"""

from __future__ import annotations

import io
import json
import os
import threading
from pathlib import Path
from typing import Any

import torch

_save = torch.save  # as torch has it: ddp_patch's waits for the other ranks


class Record:
    """The record of this process; its children write nothing."""

    def __init__(self, folder: str, rank: int) -> None:
        """Begin it.

        Args:
            folder: that exists.
            rank: of this process.
        """
        self.rank = rank
        self.step = 0  # optimizer steps that were taken
        self.age = 0  # these, or backwards if there were more: what rounding grows with
        self._pid = os.getpid()
        self._lock = threading.RLock()
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._events = os.open(Path(folder) / f"events.{rank}", flags, 0o600)
        self._tensors = os.open(Path(folder) / f"tensors.{rank}", flags, 0o600)
        self._once: set[tuple[Any, ...]] = set()

    def event(self, kind: str, **fields: Any) -> None:
        """Write down what happened."""
        if os.getpid() != self._pid:
            return
        line = json.dumps({"kind": kind, "step": self.step, "age": self.age, **fields}) + "\n"
        with self._lock:
            _write(self._events, line.encode())

    def once(self, kind: str, **fields: Any) -> None:
        """Write down what happened, the first time."""
        key = (kind, *fields.values())
        if key not in self._once:
            self._once.add(key)
            self.event(kind, **fields)

    def tensors(self, tensors: dict[str, torch.Tensor]) -> None:
        """Keep the tensors that the script ended with."""
        if os.getpid() == self._pid:
            buffer = io.BytesIO()
            _save(tensors, buffer)
            _write(self._tensors, buffer.getvalue())


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
