"""Show a failure once: the first rank that raises prints its traceback, the others end quietly."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TextIO

from .launcher import Placement

_OWN = str(Path(__file__).parent.parent)

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], None]


class CrashHook:
    """A ``sys.excepthook`` for ranks.

    All ranks run one program, so most errors happen on all of them, and a rank whose peer is gone fails on the
    next collective. Only the first to arrive is the cause.
    """

    def __init__(self, placement: Placement, is_first: Callable[[str], bool], previous: Hook) -> None:
        """Remember the hook that was there before torch put its own on top; it prints the traceback."""
        self.failed = False
        self.stream: TextIO | None = None  # standard error, where ``sys.stderr`` is silenced
        self._placement = placement
        self._is_first = is_first
        self._previous = previous
        self._saying = threading.RLock()  # whoever ends this process waits for what another thread is saying

    def install(self) -> None:
        """Become the process's excepthook."""
        sys.excepthook = self

    def uninstall(self) -> None:
        """Give the previous hook back, unless somebody put another on top."""
        if sys.excepthook is self:
            sys.excepthook = self._previous

    def __call__(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        """Print the traceback if no other rank did."""
        with self._saying:
            self._say(kind, error, traceback)

    def _say(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        self.failed = True
        if not self._is_first(f"{kind.__name__}: {error}"):
            return
        rank, size = self._placement.rank, self._placement.world_size
        is_wanted = kind.__name__ == "BdbQuit"  # by the person at the debugger
        with self.speaking():
            if is_wanted:
                traceback = _without_ours(traceback)
                error = error.with_traceback(traceback)
            self._previous(kind, error, traceback)
            if not is_wanted:
                sys.stderr.write(f"ddp_patch: rank {rank} of {size} raised this {kind.__name__}; the job ends.\n")
            sys.stderr.flush()

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


def _without_ours(traceback: TracebackType | None) -> TracebackType | None:
    """Leave out what this package did between the script and Python's debugger."""
    if traceback is None:
        return None
    rest = _without_ours(traceback.tb_next)
    if traceback.tb_frame.f_code.co_filename.startswith(_OWN):
        return rest
    return TracebackType(rest, traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno)
