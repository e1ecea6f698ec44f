"""Python's debuggers: one on every rank, which stop at the same lines and are given the same commands.

What they print is rank 0's, as everything else. They stop where the ranks are in step, and show the frames that one
process has.
"""

from __future__ import annotations

from bdb import Bdb
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from .. import script_thread
from ..batch.world import World
from ..errors import LockstepError
from ..job import debugged
from ..ledger import script_line
from .callers import frames, is_ours, kind
from .prompts import Prompts
from .rank_zero import RankZero

_PROGRAM = str(Path(__file__).parent.parent / "__main__.py")
_CALL = torch.nn.Module._wrapped_call_impl.__code__  # what ``module(x)`` runs (torch 2.13)


class Debugger:
    """Where debuggers stop, and what they show."""

    def __init__(self, rank_zero: RankZero, prompts: Prompts) -> None:
        """Let them stop wherever the ranks are in step.

        Args:
            rank_zero: who acts for all ranks.
            prompts: of the ranks.
        """
        self._rank_zero = rank_zero
        self._prompts = prompts
        self._left = debugged.handed_over()  # by the process before this one, until the script comes to enable()
        self._found: dict[tuple[str, Any], str] = {}
        around = list(frames())
        program = next((index for index, frame in enumerate(around) if _is_program(frame)), len(around))
        self._outside = frozenset(around[program:])  # of python -m ddp_patch, which runs the script

    def begin(self, world: World) -> None:
        """Have debuggers that were there before the ranks came together stop as rank 0's. Every rank comes here."""
        if self._left is None:
            (note,) = world.share([debugged.noted()])[0]
            if note is not None:
                debugged.resume(note)

    def resume(self) -> None:
        """Go on as the process before this one was told."""
        left, self._left = self._left, None
        if left is None:
            return
        if self._rank_zero.is_leader:
            debugged.recall(left["history"])
        if left["debugger"] is not None:
            debugged.resume(left["debugger"])

    def run(self, real: Callable[[], Any]) -> Any:
        """Run a program in a debugger; one that has not come to ``enable()`` again will not."""
        try:
            return real()
        finally:
            self._left = None

    def set(self, real: Callable[[], None]) -> None:
        """Begin to debug, where all ranks do.

        Raises:
            LockstepError: in what one rank runs for itself.
        """
        if self._may_stop():
            real()

    def interact(self, real: Callable[[], None]) -> None:
        """Take commands until one of them has the program go on.

        Raises:
            LockstepError: in what one rank runs for itself.
        """
        if self._may_stop():
            with self._prompts.for_all():
                real()

    def trace(self, debugger: Bdb, real: Callable[..., Any], frame: FrameType, event: str, arg: Any) -> Any:
        """Tell a debugger what happens in a frame that one process has."""
        if event == "call" and debugger.botframe is not None and not _may_care(debugger, frame):
            return None  # as it says itself; before all else, since libraries call much
        if self._stops() and self._is_shown(frame):
            with self._prompts.for_all():
                return real(frame, event, arg)
        if self._left is not None and debugger.botframe is None:
            return real(frame, event, arg)  # the debugger notes where the program begins
        if event == "return" and frame.f_back is not None and frame.f_back.f_trace is None:
            frame.f_back.f_trace = debugger.trace_dispatch  # as a debugger has it of the caller of a frame it is in
        # A frame that is being entered is not looked into; one that was entered before may be shown again.
        is_entered = event == "call" and not (self._left is not None and self._is_shown(frame))
        return None if is_entered else debugger.trace_dispatch

    def set_return(self, debugger: Bdb, real: Callable[[], None]) -> None:
        """Stop when a frame has returned, in the one that called it on one process."""
        real()
        caller = debugger.stopframe
        while caller is not None and not self._is_shown(caller):
            caller = caller.f_back
        debugger.stopframe = caller or debugger.stopframe

    def stack(self, entries: list[tuple[FrameType, int]], current: int) -> tuple[list[tuple[FrameType, int]], int]:
        """Leave out the frames that one process does not have.

        Args:
            entries: frames and lines, the outermost first.
            current: index of the one that is looked at.
        """
        shown = [self._is_shown(frame) for frame, _ in entries]
        if not any(shown):
            return entries, current
        kept = [entry for entry, is_kept in zip(entries, shown, strict=True) if is_kept]
        return kept, max(0, sum(shown[: current + 1]) - 1)

    def _may_stop(self) -> bool:
        stops = self._stops()
        if not stops and self._left is None and not self._rank_zero.is_silent():
            raise LockstepError(
                f"{script_line()}: a debugger cannot stop in what one rank runs for itself (a dataset, a collate_fn, a "
                "method that pickling calls): the other ranks are elsewhere, and one process would stop for their rows "
                "as well. Debug it on one process: ddp_patch.enable(nproc=1)."
            )
        return stops

    def _stops(self) -> bool:
        """Tell whether all ranks are here; of a thread, which are not in step, rank 0's stops."""
        if self._left is not None:
            return False
        if script_thread.is_here():
            return self._rank_zero.in_lockstep()
        return not self._rank_zero.is_silent()

    def _is_shown(self, frame: FrameType) -> bool:
        """Tell whether the script, or what it called, runs in a frame; not what we called for it."""
        found = self._whose(frame)
        if found == "ours" or frame in self._outside:
            return False
        while found != "script":
            outer = frame.f_back
            if outer is None:
                return frame.f_globals.get("__name__") == "runpy"
            found = self._whose(outer)
            if found == "ours":
                return _is_program(outer) or _is_call_of_module(frame) or frame.f_code is Bdb.run.__code__
            frame = outer
        return True

    def _whose(self, frame: FrameType) -> str:
        """Tell whose code runs: "ours", "script", or something else."""
        key = (frame.f_code.co_filename, frame.f_globals.get("__name__"))
        found = self._found.get(key)
        if found is None:
            found = "ours" if is_ours(frame) else "made" if _is_made(frame) else kind(frame)
            self._found[key] = found
        return found


def _may_care(debugger: Bdb, frame: FrameType) -> bool:
    """Tell whether a debugger looks into a frame that is being entered: as ``Bdb.dispatch_call`` does."""
    return bool(debugger.stop_here(frame) or debugger.break_anywhere(frame))


def _is_made(frame: FrameType) -> bool:
    """Tell what dataclasses and named tuples made for a library, or for the script."""
    return frame.f_code.co_filename == "<string>" and frame.f_globals.get("__name__") != "__main__"


def _is_program(frame: FrameType) -> bool:
    return frame.f_code.co_filename == _PROGRAM


def _is_call_of_module(frame: FrameType) -> bool:
    """Tell whether a module of the script's is called here, as the script wrote."""
    return frame.f_code is _CALL and not isinstance(frame.f_locals.get("self"), DistributedDataParallel)
