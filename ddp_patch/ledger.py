"""What happened in this session, written down where it happens and rendered by ``diagnosis.report``."""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

_LIBRARIES = (str(Path(__file__).parent), str(Path(os.__file__).parent))  # this one, and Python's own


@dataclass
class Gathers:
    """How often one function made the ranks exchange whole batches, from one line of the script."""

    calls: int = 0
    collectives: int = 0
    bytes: int = 0


@dataclass
class Ledger:
    """Counters of one session on this rank."""

    patched: list[str] = field(default_factory=list)
    replicas: dict[str, str] = field(default_factory=dict)  # module -> why it became one
    on_batches: dict[str, str] = field(default_factory=dict)  # module -> why its forward runs as written, on batches
    on_whole: dict[str, str] = field(default_factory=dict)  # module -> why every rank computes all of it
    loaders: dict[str, str] = field(default_factory=dict)  # loader -> how it is dealt
    gathers: dict[tuple[str, str], Gathers] = field(default_factory=dict)  # (function, script line)
    collectives: Counter[str] = field(default_factory=Counter)  # kind -> calls
    collective_bytes: Counter[str] = field(default_factory=Counter)  # kind -> bytes
    rows: Counter[int] = field(default_factory=Counter)  # rows of this rank in a model call -> calls
    steps: int = 0  # optimizer steps
    deferred: int = 0  # backwards that went without an all-reduce, since another one follows
    overflows: int = 0  # steps left out, since their gradients overflowed in half precision
    late: int = 0  # averages of gradients after their backward
    notes: dict[str, None] = field(default_factory=dict)  # said once, in order

    def count(self, kind: str, size: int) -> None:
        """Count one collective that carried ``size`` bytes."""
        self.collectives[kind] += 1
        self.collective_bytes[kind] += size

    def gathered(self, function: str, collectives: int, size: int) -> None:
        """Count one call of a function that had to see the whole batch."""
        entry = self.gathers.setdefault((function, script_line()), Gathers())
        entry.calls += 1
        entry.collectives += collectives
        entry.bytes += size

    def note(self, text: str) -> None:
        """Write down something the script's author should know, once."""
        self.notes[text] = None


def script_line(frame: FrameType | None = None) -> str:
    """Name the line of the script that is running: the innermost frame outside libraries.

    Args:
        frame: of a thread; the caller's by default.
    """
    frame = frame or sys._getframe(1)
    outermost = "?"
    while frame is not None:
        name = frame.f_code.co_filename
        # What dataclasses generate is of no file, but has the names of the class's module (CPython 3.10 to 3.14).
        place = str(frame.f_globals.get("__file__", name)) if name == "<string>" else name
        if not place.startswith(_LIBRARIES) and "site-packages" not in place and not name.startswith("<frozen"):
            return f"{Path(name).name}:{frame.f_lineno}"
        outermost = f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return outermost
