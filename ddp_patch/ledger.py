"""What happened in this session, written down where it happens and rendered by ``diagnosis.report``."""

from __future__ import annotations

import functools
import logging
import os
import sys
import textwrap
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from .installed import is_installed
from .pace import Pace

logger = logging.getLogger(__name__)

_SAID = 80  # characters of an error, as a reason

_LIBRARIES = (str(Path(__file__).parent), str(Path(os.__file__).parent))  # this one, and Python's own


@dataclass
class Gathers:
    """How often one function saw whole batches, from one line of the script, and ranks exchanged them for it."""

    calls: int = 0
    collectives: int = 0
    bytes: int = 0
    watched: int = 0  # of the collectives: in calls, as the first, that are to tell what keeps rows apart


@dataclass
class RegisteredCalls:
    """How often a registered function computed this rank's rows, and how often what every rank computes."""

    rows: int = 0
    whole: int = 0


FEWER_ROWS = "fewer rows than there are ranks"
_WITHOUT_BATCH = (
    f"no batch reaches it: its first tensor has {FEWER_ROWS}, numbers in one dimension, or is sparse; if another "
    "dimension is the batch's, write ddp_patch.enable(batch_dims={argument: dimension})"
)


@dataclass
class Ledger:
    """Counters of one session on this rank."""

    patched: list[str] = field(default_factory=list)
    replicas: dict[str, str] = field(default_factory=dict)  # module -> why it became one
    on_batches: dict[str, str] = field(default_factory=dict)  # module -> why its forward runs as written, on batches
    on_whole: dict[str, str] = field(default_factory=dict)  # module -> why every rank computes all of it
    without_batch: dict[str, None] = field(default_factory=dict)  # modules that were trained by calls without a batch
    loaders: dict[str, str] = field(default_factory=dict)  # loader -> how it is dealt
    gathers: dict[tuple[str, str], Gathers] = field(default_factory=dict)  # (function, script line)
    registered: dict[str, RegisteredCalls] = field(default_factory=dict)  # function of the script's author
    collectives: Counter[str] = field(default_factory=Counter)  # kind -> calls
    collective_bytes: Counter[str] = field(default_factory=Counter)  # kind -> bytes
    work: dict[str, float] = field(default_factory=dict)  # module -> part of a forward's work that is split over ranks
    rows: Counter[int] = field(default_factory=Counter)  # rows of this rank in a model call -> calls
    steps: int = 0  # of optimizers
    iterations: int = 0  # of the script's loop, in which each of several optimizers steps at most once
    deferred: int = 0  # backwards that went without an all-reduce, since another one follows
    batches: int = 0  # that loaders gave
    small_batches: int = 0  # of these, with fewer rows than there are ranks
    has_grown: bool = False  # a batch, or was the ranks' already: the script's batch size counts the rows of a rank
    epochs: float | None = (
        None  # of the loader in use, with the part of the present one; None where it has no length, or there is none
    )
    loader: str = ""  # its name, alike on every rank
    overflows: int = 0  # steps left out, since their gradients overflowed in half precision
    late: int = 0  # averages of gradients after their backward
    compared: int = 0  # times that the ranks' parameters and gradients were found equal, or not
    choices: dict[str, str] = field(default_factory=dict)  # option and model -> what was chosen by measurement, and why
    notes: dict[str, None] = field(default_factory=dict)  # said once, in order
    pace: Pace = field(default_factory=Pace)
    # Optimizers that stepped in it, by identity.
    _of_iteration: set[int] = field(default_factory=set)

    def computed_whole(self) -> dict[str, str]:
        """Modules that every rank computes whole, and why."""
        unsplit = [name for name in self.without_batch if name not in self.replicas]
        return {**dict.fromkeys(unsplit, _WITHOUT_BATCH), **self.on_whole}

    def stepped(self, optimizer: Any) -> None:
        """Count a step of an optimizer."""
        self.steps += 1
        if id(optimizer) in self._of_iteration:
            self._of_iteration.clear()
        self.iterations += not self._of_iteration
        self._of_iteration.add(id(optimizer))

    def count(self, kind: str, size: int, times: int = 1) -> None:
        """Count one collective, or several, that carried ``size`` bytes."""
        self.collectives[kind] += times
        self.collective_bytes[kind] += size

    def saw_whole(self, function: str) -> None:
        """Count one call of a function that has to see whole batches."""
        self.gathers.setdefault((function, script_line()), Gathers()).calls += 1

    def gathered(self, function: str, size: int, *, is_watched: bool = False) -> None:
        """Count one exchange of a whole batch, and whether it was in a call that is watched."""
        self.count("all_gather", size)
        entry = self.gathers.setdefault((function, script_line()), Gathers())
        entry.collectives += 1
        entry.watched += is_watched
        entry.bytes += size

    def note(self, text: str) -> None:
        """Write down something the script's author should know, once."""
        self.notes[text] = None

    def warn(self, text: str) -> None:
        """Write it down, and say it at once, once."""
        if text not in self.notes:
            logger.warning("ddp_patch: %s.", text)
        self.note(text)


def script_line(frame: FrameType | None = None) -> str:
    """Name the line of the script that is running: the innermost frame outside libraries.

    Args:
        frame: of a thread; the caller's by default.
    """
    return _line(frame or sys._getframe(1), is_file_of_script)


def is_of_script(frame: FrameType) -> bool:
    """Tell frames of the script from those of libraries, as ``script_line`` does."""
    return is_file_of_script(_place_of(frame)) and not frame.f_code.co_filename.startswith("<frozen")


def model_line() -> str:
    """Name the line of a model that is running: the innermost frame outside torch, this package and Python's own."""
    return _line(sys._getframe(1), is_of_model)


def raised(error: Exception) -> str:
    """Name an error, with the beginning of what it says and the innermost line of a model that it came by."""
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if is_of_model(_place_of(frame))]
    at = f", at {_shown(frames[-1][0].f_code.co_filename, frames[-1][1])}" if frames else ""
    said = textwrap.shorten(next(iter(str(error).splitlines()), ""), _SAID, placeholder=" ...")
    return f"{type(error).__name__} ({said}){at}" if said else f"{type(error).__name__}{at}"


def is_of_model(place: str) -> bool:
    """Tell files of scripts and of installed packages from those of torch, this package and Python."""
    if place.startswith(_LIBRARIES[0]) or f"{os.sep}torch{os.sep}" in place:
        return False
    return is_installed(place) or not place.startswith(_LIBRARIES)


@functools.lru_cache(maxsize=4096)
def is_file_of_script(place: str) -> bool:
    """Tell files of the script from those of Python, this package and installed ones."""
    return not place.startswith(_LIBRARIES) and not is_installed(place)


def _place_of(frame: FrameType) -> str:
    # What dataclasses generate is of no file, but has the names of the class's module (CPython 3.10 to 3.14).
    name = frame.f_code.co_filename
    return str(frame.f_globals.get("__file__", name)) if name == "<string>" else name


def _line(frame: FrameType | None, counts: Callable[[str], bool]) -> str:
    shown = None
    while frame is not None:
        shown = frame
        name = frame.f_code.co_filename
        if counts(name if name[:1] != "<" else _place_of(frame)) and not name.startswith("<frozen"):
            break
        frame = frame.f_back
    return "?" if shown is None else _shown(shown.f_code.co_filename, shown.f_lineno)


@functools.lru_cache(maxsize=4096)
def _shown(name: str, line: int) -> str:
    return f"{os.path.basename(name)}:{line}"
