"""Everything that is noted in one process, put together."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import NoReturn

from . import made, still, text
from .models import TrainedModels
from .record import Record
from .row_recorder import RowRecorder
from .settings import Settings
from .steps import Steps
from .writes import Writes


class Recorder:
    """Notes what a script does, from before it begins until it has ended."""

    def __init__(self, settings: Settings, rank: int) -> None:
        """Open the record."""
        self._settings = settings
        self._is_finished = False
        self._record = Record(settings.record, rank)
        self._models = TrainedModels()
        self._steps = Steps(self._record, self._models, settings.steps, settings.local)

    def install(self) -> None:
        """Look on from now on. Before ddp_patch is enabled, which then wraps what is installed here."""
        settings = self._settings
        if settings.still:
            still.install(self._record)
        made.install(self._record, settings.local)
        if not settings.alone and not settings.local:
            made.note_ranks(self._record)
        if settings.alone or settings.local:
            RowRecorder(self._record, settings.batches).install()
        Writes(self._record, settings).install()
        self._steps.install()
        self._streams = text.install(self._record)
        self._leaves(os._exit)

    def _leaves(self, wrapped: Callable[[int], NoReturn]) -> None:
        """Keep what there is when the script leaves at once."""
        pid = os.getpid()

        @functools.wraps(wrapped)
        def leave(status: int) -> NoReturn:
            if os.getpid() == pid and not self._is_finished:
                self.finish("exit", SystemExit(status))
            wrapped(status)

        os._exit = leave

    def finish(self, how: str, error: BaseException | None) -> None:
        """Keep what the script ended with, before its exit functions run.

        Args:
            how: "end", "exit" (``sys.exit``) or "error".
            error: that ended it.
        """
        self._is_finished = True
        is_enough = self._steps.is_enough and how == "exit"
        self._steps.finish(went_well=how != "error")
        for stream in self._streams:
            stream.finish()
        self._record.tensors(self._models.state())
        self._models.let_go()
        code = getattr(error, "code", None) if how == "exit" else None
        said = "" if how != "error" or error is None else f"{type(error).__name__}: {error}"
        self._record.event("end", how="enough" if is_enough else how, code=_code(code), error=said)


def _code(code: object) -> int:
    if isinstance(code, int):
        return code
    return 0 if code is None else 1
