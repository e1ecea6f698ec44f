"""The end of a process that failed: what the interpreter would still do, and then out.

The interpreter itself must not come to its end: gloo's threads still wait for ranks that will not come, and abort a
process that takes itself apart (see ``Job.close``).
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
import types
from typing import NoReturn

from .crash import CrashHook
from .departure import Departure

_STAYS = (types.ModuleType, types.FunctionType, type)  # what a ``__del__`` may call


class Leaving:
    """Leaves when the exit functions are done with that were registered before those of the job."""

    def __init__(self, crash: CrashHook, departure: Departure) -> None:
        """Wait for them.

        Args:
            crash: what this rank met.
            departure: of this rank.
        """
        self._crash = crash
        self._departure = departure
        self._process = os.getpid()

    def begin(self) -> None:
        """Come to it, in an exit function."""
        # Of what is registered while exit functions run, none is called (CPython 3.10 to 3.14). All are let go of when
        # the last has run, so that this is where ``_Last`` goes.
        atexit.register(_nothing, _Last(self))

    def leave(self) -> None:
        """Let go of the program's objects, which finish what they write, and end."""
        if os.getpid() != self._process:
            return
        try:
            self._crash.forget()
            if self._departure.is_leader:  # what the others' objects still did would be done twice
                _let_go(vars(sys.modules["__main__"]))
            self._departure.wait_for_turn()
        finally:
            self._departure.goes()
            leave_at_once(self._crash.code)


class _Last:
    def __init__(self, leaving: Leaving) -> None:
        self._leaving = leaving

    def __del__(self) -> None:
        self._leaving.leave()


def _nothing(last: _Last) -> None:
    pass


def _let_go(names: dict[str, object]) -> None:
    """Empty a module in the interpreter's order, but for what the objects may call as they go."""
    for name in sorted(names, key=lambda name: not name.startswith("_")):
        if not name.startswith("__") and not isinstance(names[name], _STAYS):
            names[name] = None
    gc.collect()


def leave_at_once(code: int = 1) -> NoReturn:
    """End this process without the exit functions, which would wait for other ranks."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(ValueError, OSError, AttributeError):
            stream.flush()
    os._exit(code)
