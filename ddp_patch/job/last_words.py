"""What is left by a process that is gone without an exception: that it called os._exit, or where code in C crashed.

Python's faulthandler writes the latter from the signal's handler, to a file of ddp_patch's agent, or to memory; the
ranks of the host hold it open. One that the system kills leaves nothing.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
from dataclasses import dataclass
from pathlib import Path

from ..ledger import is_file_of_script

FOLDER = "DDP_PATCH_UNSAID"  # the variable that names that of ddp_patch's agent

_MOST = 1 << 16  # bytes
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND  # an earlier attempt of the launcher's may have left some
_FRAMES = 12  # of a crash, in a message
_FATAL = "Fatal Python error: "
_FRAME = re.compile(r'  File "(?!<frozen)(.+)", line (\d+)')


class _State:
    """The memory of this process, as long as it lives: faulthandler may write to it at any time."""

    descriptor: int | None = None
    hears_crashes = False  # not where the script or its launcher has faulthandler write elsewhere


@dataclass(frozen=True)
class LastWords:
    """What was read of a rank that is gone."""

    what: str  # happened, and in which line of the script
    frames: str  # of its threads, where it crashed


def descriptor(rank: int) -> int | None:
    """Have crashes of this process written where they outlive it, and give that; None where the system has no such.

    Args:
        rank: of this process.
    """
    folder = os.environ.get(FOLDER)
    if _State.descriptor is None and folder is not None:
        with contextlib.suppress(OSError):  # the agent is gone, and this rank is about to
            _State.descriptor = os.open(of_rank(Path(folder), rank), _FLAGS, 0o600)
    if _State.descriptor is None and hasattr(os, "memfd_create"):
        _State.descriptor = os.memfd_create("ddp_patch_last_words")
    if _State.descriptor is not None and not faulthandler.is_enabled():
        faulthandler.enable(_State.descriptor)
        _State.hears_crashes = True
    return _State.descriptor


def belong_to_the_script() -> None:
    """Crashes are written from now on where the script wants them, in its children too."""
    _State.hears_crashes = False


def hears_crashes() -> bool:
    """Tell whether it is we who have Python write down crashes."""
    return _State.hears_crashes


def say(what: str) -> None:
    """Say why this process is about to be gone."""
    if _State.descriptor is not None:
        os.write(_State.descriptor, what.encode())


def of_rank(folder: Path, rank: int) -> Path:
    """Name the file of a rank in the agent's folder."""
    return folder / f"{rank}.words"


def read(descriptor: int) -> LastWords | None:
    """Read what a process has left; None if that is nothing."""
    text = os.pread(descriptor, _MOST, 0).decode(errors="replace")
    if not text.startswith(_FATAL):
        return LastWords(text, "") if text else None
    threads = re.split(r"\n(?=Thread 0x|Current thread 0x)", text.partition("\nExtension modules:")[0])
    said, *others = threads
    # The crashed thread comes first in a message, and may be one of torch's, in which no line of Python runs.
    others.sort(key=lambda thread: not thread.startswith("Current thread"))
    found = (match for thread in others for match in _FRAME.finditer(thread) if is_file_of_script(match[1]))
    first = next(found, None)
    where = "" if first is None else f" in {os.path.basename(first[1])}:{first[2]}"
    lines = [line for thread in others[:1] for line in thread.rstrip().splitlines()]
    return LastWords(f"{said.removeprefix(_FATAL).strip()}{where}", "\n".join(lines[: _FRAMES + 1]))


def _forget() -> None:
    """A child that was forked is no rank."""
    if _State.hears_crashes:
        faulthandler.disable()
    _State.descriptor, _State.hears_crashes = None, False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
