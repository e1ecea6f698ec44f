"""Whether a rank of this host ended before it came to the others, where its launcher lets those wait.

srun does without --kill-on-bad-exit, and MPICH's mpirun where no rank has called MPI_Init. Such a rank left nothing
by which it could be known. What is left of a launcher on a host is the parent of all ranks there, and knows how many it
started: fewer children than that, and one has ended.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from pathlib import Path

from ..errors import LaunchError
from .launcher import LaunchInfo

_LOOK = 1.0  # seconds between two looks at the host's processes, some 10 ms each


class Siblings:
    """The processes that the launcher started on this host, of which this one is one."""

    def __init__(self, info: LaunchInfo) -> None:
        """Find their parent; without one that is known, none is ever missed.

        Args:
            info: from the launcher.
        """
        self._info = info
        self._started = _started(info)
        self._parent = _ancestor(info.launcher.starters) if self._started > 1 else 0
        self._next_look = 0.0
        self._is_one_less = False

    def has_lost_one(self) -> bool:
        """Tell whether one has ended. Two looks in a row say so: a launcher starts them one after the other."""
        now = time.monotonic()
        if not self._parent or now < self._next_look:
            return False
        self._next_look = now + _LOOK
        was_one_less, self._is_one_less = self._is_one_less, len(_children(self._parent)) < self._started
        return was_one_less and self._is_one_less

    def refusal(self, where: str) -> LaunchError:
        """Give the error that says so.

        Args:
            where: it ended.
        """
        lost = ", ".join(map(str, self._missing()))
        return LaunchError(
            f"Rank {self._info.rank} of {self._info.world_size}, on {socket.gethostname()}, does not wait for "
            f"{f'rank {lost}' if lost else 'another rank of this host'}, which ended {where}. Look at what it printed."
        )

    def _missing(self) -> list[int]:
        """List the ranks that have ended; none where all are not on this host, or its processes are not to be read."""
        mark = f"{self._info.launcher.ranks[0]}=".encode()
        found = set()
        for pid in _children(self._parent):
            with contextlib.suppress(OSError):
                for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    if variable.startswith(mark):
                        found.add(int(variable.removeprefix(mark)))
        is_known = self._parent and self._started == self._info.world_size
        return sorted({*range(self._info.world_size)} - found) if is_known else []


def without_store(info: LaunchInfo) -> LaunchError:
    """Give the error of a rank whose store is gone, as that of a rank that held it goes with it."""
    return LaunchError(
        f"Rank {info.rank} on {socket.gethostname()} lost the store of the job, which is rank 0's or its launcher's, "
        f"before all {info.world_size} ranks had come. Look at what rank 0 printed."
    )


def _started(info: LaunchInfo) -> int:
    """Give how many ranks the launcher started on this host; 0 where it does not say so."""
    if info.local_world_size:
        return info.local_world_size
    if info.address is None:
        return info.world_size
    each, host = os.environ.get(info.launcher.each, ""), os.environ.get(info.launcher.host, "")
    counts = [int(one) for one, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", each) for _ in range(int(times or 1))]
    return counts[int(host)] if host.isdigit() and int(host) < len(counts) else 0


def _ancestor(names: tuple[str, ...]) -> int:
    """Give the nearest process above this one that has one of these names; 0 where there is none, or it is not seen."""
    pid = os.getppid()
    with contextlib.suppress(OSError):  # of another PID namespace
        while pid:
            head, _, tail = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
            if head.partition("(")[2] in names:
                return pid
            pid = int(tail.split()[1])
    return 0


def _children(parent: int) -> list[int]:
    """List the children of a process that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            state, above = path.read_text().rpartition(")")[2].split()[:2]  # of proc(5), from the third field on
            if int(above) == parent and state not in "ZX":
                found.append(int(path.parent.name))
    return found
