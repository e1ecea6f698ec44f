"""logging's file handlers: rank 0 writes and rotates, the other ranks format the record and drop it.

When a file is rotated depends on its size, and so on times in its lines that differ between ranks.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from ..effects.files import Files
from ..effects.turns import Turns
from ..patcher import Patch


def patches(turns: Turns, files: Files) -> list[Patch]:
    """Rows for ``logging``."""

    def open_file(wrapped: Any, instance: logging.FileHandler, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        opened: list[Any] = []
        if turns.are_taken():
            path = instance.baseFilename
            turns.take("logging.FileHandler", lambda: opened.append(wrapped(*args, **kwargs)), [path], hands_over=False)
            files.goes_on(path)
        elif not turns.are_silent():
            return wrapped(*args, **kwargs)
        return opened[0] if turns.is_leader else open(os.devnull, "w", encoding=instance.encoding)

    def emit(wrapped: Any, instance: logging.Handler, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not (turns.are_taken() or turns.are_silent()):
            wrapped(*args, **kwargs)
            return
        if turns.is_leader:
            with turns.alone():
                wrapped(*args, **kwargs)
            return
        (record,) = args
        try:
            instance.format(record)
        except Exception:  # noqa: BLE001 — logging reports what goes wrong in a handler, and goes on
            instance.handleError(record)

    once = "rank 0 writes and rotates"
    return [
        Patch("logging", "FileHandler._open", open_file, once),
        Patch("logging", "FileHandler.emit", emit, once),
        Patch("logging.handlers", "BaseRotatingHandler.emit", emit, once),
        Patch("logging.handlers", "WatchedFileHandler.emit", emit, once),
        *(Patch("logging.handlers", f"{name}.emit", emit, "rank 0 sends") for name in _SENDERS),
    ]


_SENDERS = ("SocketHandler", "SysLogHandler", "SMTPHandler", "HTTPHandler")
