"""Which files this process has open, as the system tells (Linux)."""

from __future__ import annotations

import os
from pathlib import Path

_OPEN = Path("/proc/self/fd")


def is_written_to(path: str) -> bool:
    """Tell whether this process may go on writing to a file: it has a descriptor of it for that, or a map of it."""
    try:
        wanted, descriptors = os.stat(path), os.listdir(_OPEN)
    except FileNotFoundError:  # the file; where there is no such folder, nobody can tell
        return not _OPEN.is_dir()
    return any(_is(wanted, descriptor) for descriptor in descriptors)


def _is(wanted: os.stat_result, descriptor: str) -> bool:
    try:
        if not os.path.samestat(os.stat(_OPEN / descriptor), wanted):
            return False
        told = Path("/proc/self/fdinfo", descriptor).read_text().split()
    except OSError:  # closed meanwhile
        return False
    return int(told[told.index("flags:") + 1], 8) & os.O_ACCMODE != os.O_RDONLY
