"""Files and folders that this rank calls otherwise than rank 0, because a clock or a process number is in the name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any


class Names:
    """Rank 0's names for them."""

    _look = staticmethod(os.lstat)  # not by a module's name, which the patch of os.lstat would be bound to

    def __init__(self) -> None:
        """Start with none."""
        self._renamed: dict[str, str] = {}  # this rank's name -> rank 0's

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._renamed)

    def leaders(self, path: Any) -> Any:
        """What rank 0 calls a path of this rank."""
        if not self._renamed or not isinstance(path, (str, bytes, os.PathLike)):
            return path
        absolute = os.path.abspath(os.fsdecode(path))
        with contextlib.suppress(OSError, ValueError):
            self._look(absolute)
            return path
        for name, leaders in self._renamed.items():
            if absolute == name or absolute.startswith(name + os.sep):
                return leaders + absolute[len(name) :]
        return path

    def rename(self, local: Sequence[str], leaders: Sequence[str]) -> None:
        """Note what rank 0 calls what this rank has just named."""
        for ours, theirs in zip(local, leaders, strict=True):
            self._renamed.pop(theirs, None)  # rank 0 has a file of that very name now
            if ours != theirs:
                # The part that differs: runs/12:00:01 for runs/12:00:00, whatever lies in it.
                while os.path.basename(ours) == os.path.basename(theirs):
                    ours, theirs = os.path.dirname(ours), os.path.dirname(theirs)
                self._renamed[ours] = theirs
