"""Python's debuggers stop on all ranks alike: pdb, and what is made of it, such as IPython's."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from ..effects.callers import is_ours
from ..patch import Args, Kwargs, Patch
from ..session import Session


def _set_trace(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
    def stopped_at(frame: FrameType | None = None, **others: Any) -> None:
        session.console.debugger.set(lambda: wrapped(_caller() if frame is None else frame, **others))

    stopped_at(*args, **kwargs)


def _trace(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    return session.console.debugger.trace(instance, wrapped, *args, **kwargs)


def _set_return(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
    session.console.debugger.set_return(instance, lambda: wrapped(*args, **kwargs))


def _stack(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    return session.console.debugger.stack(*wrapped(*args, **kwargs))


def _interact(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
    session.console.debugger.interact(lambda: wrapped(*args, **kwargs))


def _run(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    return session.console.debugger.run(lambda: wrapped(*args, **kwargs))


def _caller() -> FrameType:
    frame = sys._getframe(1)
    while is_ours(frame) and frame.f_back is not None:
        frame = frame.f_back
    return frame


_ALIKE = "one debugger: all ranks stop at the same line and run the same commands"

PATCHES = (
    Patch("bdb", "Bdb.run", _run, _ALIKE),
    Patch("bdb", "Bdb.set_trace", _set_trace, _ALIKE),
    Patch("bdb", "Bdb.trace_dispatch", _trace, _ALIKE),
    Patch("bdb", "Bdb.set_return", _set_return, _ALIKE),
    Patch("bdb", "Bdb.get_stack", _stack, "frames of ddp_patch are not shown"),
    Patch("pdb", "Pdb.interaction", _interact, _ALIKE),
)
