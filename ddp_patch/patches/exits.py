"""Ends of a program: sys.exit and os._exit keep their line, for when some ranks come to it; os.exec* leaves the job."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, NoReturn

from .. import script_thread
from ..errors import OrderError
from ..job import last_words
from ..ledger import script_line
from ..patch import Args, Kwargs, Patch
from ..session import Session

_SHOWN = 80  # characters


def _leave(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    if script_thread.is_here():
        shown = ", ".join(map(repr, args))
        session.job.watch.whereabouts.end = f"sys.exit({shown if len(shown) < _SHOWN else '...'}) in {script_line()}"
    return wrapped(*args, **kwargs)


def _leave_at_once(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    code = args[0] if args else kwargs.get("status")
    with contextlib.suppress(Exception):  # the disk is full, say: it ends all the same
        if not session.job.rank_status.out_of_step:  # this is not how it ends what cannot go on
            last_words.say(f"it called os._exit({code!r}) in {script_line()}")
    return wrapped(*args, **kwargs)


def _hear_crashes(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    wrapped(*args, **kwargs)
    last_words.belong_to_the_script()


def _hears_crashes(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    return not last_words.hears_crashes() and wrapped(*args, **kwargs)


def _become(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> NoReturn:
    rank, size = session.job.placement.rank, session.job.placement.world_size
    command = [os.fsdecode(word) for word in args[1]] if len(args) > 1 else []
    again = " ".join(command)
    raise OrderError(
        f"{script_line()}: os.exec* would turn rank {rank} of {size} into a program that is none of the ranks, so that "
        f"it would run {size} times ({again}). " + (_AGAIN if command[:1] == [sys.executable] else _OTHER)
    )


_AGAIN = (
    "Move the line above ddp_patch.enable(). For a string hash of your own, write: PYTHONHASHSEED=1 python script.py"
)
_OTHER = "Write subprocess.run([...]), which runs once, and sys.exit() after it."
_ALONE = "an error: each rank would run the program"
_EFFECT = "the same; its line is kept, for when not all ranks come to it"

PATCHES = (
    Patch("sys", "exit", _leave, _EFFECT, gives_way=True),
    Patch("os", "_exit", _leave_at_once, "the same; its line is kept, for the other ranks", gives_way=True),
    # Where nobody else does, the ranks of a host hear of each other's crashes by it.
    Patch("faulthandler", "enable", _hear_crashes, "the same"),
    Patch("faulthandler", "is_enabled", _hears_crashes, "whether the script has enabled it"),
    # All of os.exec* call these two.
    *(Patch("os", name, _become, _ALONE) for name in ("execv", "execve")),
)
