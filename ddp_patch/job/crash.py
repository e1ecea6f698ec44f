"""Show a failure once: the first rank that raises prints its traceback, the others end quietly."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TextIO

from .. import script_thread
from ..ledger import is_of_script
from .launcher import Placement
from .rank_status import RankStatus

_PACKAGE = str(Path(__file__).parent.parent)

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], None]


class CrashHook:
    """A ``sys.excepthook`` for ranks.

    All ranks run one program, so most errors happen on all of them, and a rank whose peer is gone fails on the
    next collective. Only the first to arrive is the cause.
    """

    def __init__(self, placement: Placement, rank_status: RankStatus, previous: Hook) -> None:
        """Begin to hook, with ``install``.

        Args:
            placement: of this rank.
            rank_status: tells whether this rank is the one to say an error, and the others why they cannot go on.
            previous: the hook that was there before torch put its own on top; it prints the traceback.
        """
        self.failed = False
        self.is_ending = False  # the script raised, and what is left are its exit functions
        self.error: BaseException | None = None  # that it met
        self.frame: FrameType | None = None  # where the script's thread met it
        self.code = 1  # that this process ends with, once it failed
        self.stream: TextIO | None = None  # standard error, where ``sys.stderr`` is silenced
        self.shows_package = False  # frames of this package
        self._placement = placement
        self._rank_status = rank_status
        self._previous = previous
        self._process = os.getpid()
        self._scripts: Hook | None = None  # that the script has set
        self._showing: int | None = None  # the thread that shows an error now
        self._saying = threading.RLock()  # whoever ends this process waits for what another thread is saying

    def install(self) -> None:
        """Become the process's excepthook, and come before any that the script sets later."""
        sys.excepthook = self
        _Audited.current = self
        if not _Audited.is_added:  # it cannot be removed
            _Audited.is_added = True
            sys.addaudithook(_audit)

    def uninstall(self) -> None:
        """Give the previous hook back, unless somebody put another on top."""
        _Audited.current = None
        if sys.excepthook is self:
            sys.excepthook = self._previous

    def comes_before(self, hook: Hook, error: BaseException) -> bool:
        """Do what a hook of the script's is about to do; tells whether it is done."""
        if hook is self or os.getpid() != self._process or _is_own(hook):
            return False
        self._scripts = hook
        try:
            self(type(error), error, error.__traceback__)
        finally:
            self._scripts = None
        return True

    def forget(self) -> None:
        """Let go of what failed, and of the script's frames with it."""
        self.error = self.frame = None
        for name in ("last_exc", "last_type", "last_value", "last_traceback"):
            vars(sys).pop(name, None)

    def __call__(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        """Print the traceback if no other rank did."""
        if (
            self._showing == threading.get_ident() or os.getpid() != self._process
        ):  # the script's hook goes on here; a child of its own
            self._previous(kind, error, traceback)
            return
        if script_thread.is_here():
            self.frame = _of_script(traceback)
        error = self._rank_status.cause(error)
        with self._saying:
            self._say(error, traceback)

    def _say(self, error: BaseException, traceback: TracebackType | None) -> None:
        kind = type(error)
        self.failed, self.error = True, error if traceback is None else error.with_traceback(traceback)
        self.is_ending = self.is_ending or script_thread.is_here()
        if issubclass(kind, KeyboardInterrupt):
            self.code = 128 + signal.SIGINT
        error = error.with_traceback(traceback)
        if not self._rank_status.claim_first_failure(f"{kind.__name__}: {error}"):
            if self._scripts is not None and self._rank_status.fails_alike:  # what it writes, all ranks come to
                self._show(error)
            return
        rank, size = self._placement.rank, self._placement.world_size
        is_wanted = kind.__name__ == "BdbQuit"  # by the person at the debugger
        with self.speaking():
            left_out = 0 if self.shows_package else _leave_out_ours(error)
            self._show(error)
            if not is_wanted:
                said = f" {left_out} frames of ddp_patch are left out; DDP_PATCH_TRACEBACK=1 shows them."
                hint = said if left_out else ""
                sys.stderr.write(f"ddp_patch: rank {rank} of {size} raised this {kind.__name__}; the job ends.{hint}\n")
            sys.stderr.flush()
        # Not every launcher ends the others, and they may compute for an hour before they need this one.
        self._rank_status.fail(f"rank {rank} of {size} raised {kind.__name__} ({error}), so the job ends.")

    def _show(self, error: BaseException) -> None:
        """Print the traceback, by the script's own means if it has any."""
        self._showing = threading.get_ident()
        try:
            (self._scripts or self._previous)(type(error), error, error.__traceback__)
        except Exception:  # noqa: BLE001 — of the script's hook: Python shows both as well
            sys.stderr.write("Error in sys.excepthook:\n")
            self._previous(*sys.exc_info())
            sys.stderr.write("\nOriginal exception was:\n")
            self._previous(type(error), error, error.__traceback__)
        finally:
            self._showing = None

    @contextlib.contextmanager
    def speaking(self) -> Iterator[None]:
        """Let a rank whose ``sys.stderr`` is silenced be heard, with its rank before every line."""
        if self.stream is None:
            yield
            return
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                yield
        finally:
            mark = f"[rank {self._placement.rank}] "
            # One write, so that the lines of several ranks do not mix.
            self.stream.write("".join(f"{mark}{line}" for line in said.getvalue().splitlines(keepends=True)))
            self.stream.flush()


class _Audited:
    current: CrashHook | None = None
    is_added = False


def _is_own(hook: Hook) -> bool:
    return getattr(getattr(hook, "__code__", None), "co_filename", "").startswith(_PACKAGE)


def _audit(event: str, args: tuple[Any, ...]) -> None:
    # The interpreter says so before it calls a hook, and does not call it where a RuntimeError is raised (the
    # documentation of sys.excepthook).
    if event == "sys.excepthook" and _Audited.current is not None:
        hook, _, error, _ = args
        if hook is not None and _Audited.current.comes_before(hook, error):
            raise RuntimeError


def _leave_out_ours(error: BaseException | None) -> int:
    """Leave out of an error's traceback, and of those it came from, what this package did; gives how many frames."""
    count, seen = 0, set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        frames = list(_frames(error.__traceback__))
        kept: TracebackType | None = None
        for frame in reversed(frames):
            if frame.tb_frame.f_code.co_filename.startswith(_PACKAGE):
                count += 1
            else:
                kept = TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
        error.__traceback__ = kept
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return count


def _of_script(traceback: TracebackType | None) -> FrameType | None:
    frames = [
        frame.tb_frame for frame in _frames(traceback)
    ]  # the last may be of a thread that met it for the script's
    return next((frame for frame in reversed(frames) if is_of_script(frame)), None)


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next
