"""What a script prints, with the line of it that printed."""

from __future__ import annotations

import io
import os
import sys
import threading
from types import FrameType
from typing import Any

from ...ledger import is_of_script, script_line
from .record import Record

_NOT_THE_SCRIPTS = ("warnings", "ddp_patch.", "torch.distributed.", "accelerate.", "torch._logging")
_PASSING_ON = ("ddp_patch.verify.", "ddp_patch.patches.loggers")  # what others say
_DEPTH = 12  # frames between a stream and who writes to it


class NotedStream(io.TextIOWrapper):
    """The stream itself, over the same buffer, which notes each line."""

    def __init__(self, stream: io.TextIOWrapper, name: str, record: Record) -> None:
        """Take the place of a stream.

        Args:
            stream: ``sys.stdout`` or ``sys.stderr``.
            name: "out" or "err".
            record: that gets the lines.
        """
        super().__init__(
            stream.buffer,
            stream.encoding,
            stream.errors,
            newline="\n" if os.linesep == "\n" else None,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        self.mode = getattr(stream, "mode", "w")  # type: ignore[misc]  # it can be set (CPython)
        self._stream = stream  # closing it would close the buffer
        self._which = name
        self._record = record
        self._pending = ""
        self._line = ""
        self._guard = threading.RLock()

    def write(self, text: str) -> int:
        """Write, and note what ends a line."""
        written = super().write(text)
        if isinstance(text, str) and text:
            with self._guard:
                self._note(text)
        return written

    def _note(self, text: str) -> None:
        frame = sys._getframe(2)
        if self._which == "err" and _is_not_the_scripts(frame):
            return
        if not self._pending:
            self._line = script_line(frame)
        *lines, self._pending = (self._pending + text).split("\n")
        for line in lines:
            # Of a progress bar, what is left to be seen.
            self._record.event("text", stream=self._which, line=self._line, text=line.rpartition("\r")[2])
            self._line = script_line(frame)
        if "\r" in self._pending:
            self._pending = "\r" + self._pending.rpartition("\r")[2]

    def finish(self) -> None:
        """Note a last line that nothing ended."""
        if self._pending.strip("\r"):
            text = self._pending.rpartition("\r")[2]
            self._record.event("text", stream=self._which, line=self._line, text=text)
        self._pending = ""


def _is_not_the_scripts(frame: FrameType | None) -> bool:
    """Tell warnings, and what launchers and libraries say of the processes: nothing of the script's is nearer."""
    for _ in range(_DEPTH):
        if frame is None or is_of_script(frame):
            return False
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith(_NOT_THE_SCRIPTS) and not name.startswith(_PASSING_ON):
            return True
        frame = frame.f_back
    return False


def install(record: Record) -> list[Any]:
    """Note both streams; gives what has to be finished."""
    noted = []
    for attribute, name in (("stdout", "out"), ("stderr", "err")):
        stream = getattr(sys, attribute)
        if isinstance(stream, io.TextIOWrapper):
            stream.flush()
            replaced = NotedStream(stream, name, record)
            setattr(sys, attribute, replaced)
            noted.append(replaced)
    return noted
