"""Python's debuggers stop on all ranks alike: pdb, and what is made of it, such as IPython's."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from ..effects.debugger import Debugger
from ..effects.ownership import is_ours
from ..patcher import Patch


def patches(debugger: Debugger) -> list[Patch]:
    """Rows for where they stop, and for the frames that they show."""

    def set_trace(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        def stopped_at(frame: FrameType | None = None, **others: Any) -> None:
            debugger.set(lambda: wrapped(_caller() if frame is None else frame, **others))

        stopped_at(*args, **kwargs)

    def trace(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return debugger.trace(instance, wrapped, *args, **kwargs)

    def set_return(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        debugger.set_return(instance, lambda: wrapped(*args, **kwargs))

    def stack(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return debugger.stack(*wrapped(*args, **kwargs))

    def interact(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        debugger.interact(lambda: wrapped(*args, **kwargs))

    def run(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return debugger.run(lambda: wrapped(*args, **kwargs))

    alike = "debuggers stop on all ranks alike"
    return [
        Patch("bdb", "Bdb.run", run, alike),
        Patch("bdb", "Bdb.set_trace", set_trace, alike),
        Patch("bdb", "Bdb.trace_dispatch", trace, alike),
        Patch("bdb", "Bdb.set_return", set_return, alike),
        Patch("bdb", "Bdb.get_stack", stack, "debuggers show the frames that one process has"),
        Patch("pdb", "Pdb.interaction", interact, alike),
    ]


def _caller() -> FrameType:
    frame = sys._getframe(1)
    while is_ours(frame) and frame.f_back is not None:
        frame = frame.f_back
    return frame
