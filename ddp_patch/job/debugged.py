"""A debugger that runs already when ``enable()`` is called, as under ``python -m pdb``: the ranks go on with it.

What the user of the debugger told it (breakpoints, where to stop next) goes with the job; variables do not.
"""

from __future__ import annotations

import json
import os
import sys
from bdb import Bdb, Breakpoint
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from .program import parts

_PACKAGE = str(Path(__file__).parent.parent)
_VARIABLE = "DDP_PATCH_DEBUGGER"
_ASKED_WITH = ("readline", "IPython.terminal.embed")  # imported by whoever asks somebody, pdb's first stop for one
_KEPT = ("aliases", "commands", "commands_doprompt", "commands_silent", "cmdqueue", "rcLines", "lastcmd")


def hand_over(command: list[str]) -> tuple[list[str], dict[str, str]]:
    """Have the ranks go on where a debugger of this process is.

    Args:
        command: that starts one rank.

    Returns:
        the command, in which ddp_patch is enabled before a debugger asks anything, and variables for it.
    """
    started = _enabled_first(command)
    if started is None or not any(name in sys.modules for name in _ASKED_WITH):
        return command, {}
    return started, {_VARIABLE: json.dumps({"debugger": noted(), "history": _history()})}


def handed_over() -> dict[str, Any] | None:
    """What the process before this one left, once; None if there was none, or no debugger in it."""
    note = os.environ.pop(_VARIABLE, None)
    return None if note is None else json.loads(note)


def noted() -> dict[str, Any] | None:
    """Write down what a debugger of this process was told; None if none runs."""
    debugger = _running()
    if debugger is None:
        return None
    chain = list(_script_frames())

    def place(frame: FrameType | None) -> int | None:
        # Bdb.set_continue leaves the line -1, and set_next the outermost frame as well.
        return chain.index(frame) if frame in chain and debugger.stoplineno != -1 else _NOWHERE

    displayed = getattr(debugger, "displaying", {})
    return {
        "stop": None if debugger.stopframe is None else place(debugger.stopframe),
        "return": None if debugger.returnframe is None else place(debugger.returnframe),
        "line": debugger.stoplineno,
        "breakpoints": [None if point is None else _described(point) for point in Breakpoint.bpbynumber[1:]],
        "displayed": [[chain.index(frame), list(shown)] for frame, shown in displayed.items() if frame in chain],
        "kept": {name: _with_pairs(getattr(debugger, name)) for name in _KEPT if hasattr(debugger, name)},
    }


def resume(note: dict[str, Any]) -> None:
    """Have this process's debugger go on as another one was told."""
    debugger = _running()
    if debugger is None:
        from pdb import Pdb  # noqa: PLC0415 — rarely needed

        debugger = Pdb()
        debugger.reset()
        debugger.botframe = list(_script_frames())[-1]
    chain = list(_script_frames())
    _set_breakpoints(debugger, note["breakpoints"])
    for name, value in note["kept"].items():
        setattr(debugger, name, _from_pairs(value))
    for place, shown in note["displayed"]:
        # pdb asks so for the value that the next one is compared with (CPython 3.10 to 3.14).
        debugger.displaying[chain[place]] = {text: debugger._getval_except(text, chain[place]) for text in shown}
    if note["stop"] == _NOWHERE and not debugger.breaks:
        debugger.set_continue()
        return
    debugger.stopframe = _at(chain, note["stop"], debugger.botframe)
    debugger.returnframe = _at(chain, note["return"], None)
    debugger.stoplineno = note["line"]
    for frame in chain:
        frame.f_trace = debugger.trace_dispatch
        if frame is debugger.botframe:
            break
    sys.settrace(debugger.trace_dispatch)


def recall(history: Sequence[str]) -> None:
    """Let the user get typed lines back."""
    import readline  # noqa: PLC0415 — imported where somebody asks

    for line in history:
        readline.add_history(line)


_NOWHERE = -1  # the debugger stops at breakpoints alone


def _running() -> Any:
    """The debugger that runs the script, or that steps through it."""
    for frame in _script_frames():
        if frame.f_code is Bdb.run.__code__:
            return frame.f_locals["self"]
    tracing = getattr(sys.gettrace(), "__self__", None)
    return tracing if isinstance(tracing, Bdb) else None


def _script_frames() -> Iterator[FrameType]:
    """Frames from the script's call of ``enable()`` outward."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    while frame is not None:
        yield frame
        frame = frame.f_back


def _at(chain: Sequence[FrameType], place: int | None, bottom: FrameType | None) -> FrameType | None:
    if place is None:
        return None
    return bottom if place == _NOWHERE else chain[place]


def _described(point: Any) -> dict[str, Any]:
    return {
        "where": [point.file, point.line, point.temporary, point.cond, point.funcname],
        "state": {"enabled": point.enabled, "ignore": point.ignore, "hits": point.hits},
    }


def _set_breakpoints(debugger: Bdb, points: Sequence[dict[str, Any] | None]) -> None:
    debugger.clear_all_breaks()
    Breakpoint.clearBreakpoints()
    for point in points:
        if point is None:  # numbers are not given again
            Breakpoint.bpbynumber.append(None)
            Breakpoint.next += 1
        else:
            debugger.set_break(*point["where"])
            vars(Breakpoint.bpbynumber[-1]).update(point["state"])


def _with_pairs(value: Any) -> Any:
    return {"pairs": list(value.items())} if isinstance(value, dict) else value  # keys of JSON are text


def _from_pairs(value: Any) -> Any:
    return dict(value["pairs"]) if isinstance(value, dict) else value


def _history() -> list[str]:
    readline = sys.modules.get("readline")
    if readline is None:
        return []
    return [readline.get_history_item(number + 1) for number in range(readline.get_current_history_length())]


def _enabled_first(command: Sequence[str]) -> list[str] | None:
    """Put ddp_patch before the program of a command; None for a program it cannot run."""
    flags, what, rest = parts(command[1:])
    if what in (None, "-c"):
        return None
    return [command[0], *flags, "-m", "ddp_patch", str(what), *rest]
