"""logging's file handlers: rank 0 writes and rotates, the other ranks format the record and drop it.

When a file is rotated depends on its size, and so on times in its lines that differ between ranks.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any

from ..patch import Args, Kwargs, Patch
from ..session import Session


def _open_file(session: Session, wrapped: Any, instance: logging.FileHandler, args: Args, kwargs: Kwargs) -> Any:
    opened: list[Any] = []
    if session.rank_zero.in_lockstep():
        path = instance.baseFilename
        session.rank_zero.barrier_call(
            "logging.FileHandler", lambda: opened.append(wrapped(*args, **kwargs)), [path], broadcast_result=False
        )
        session.files.goes_on(path)
    elif not session.rank_zero.is_silent():
        return wrapped(*args, **kwargs)
    return opened[0] if session.rank_zero.is_leader else open(os.devnull, "w", encoding=instance.encoding)


def _handle(session: Session, wrapped: Any, instance: logging.Logger, args: Args, kwargs: Kwargs) -> None:
    if not session.world.muted.get():
        wrapped(*args, **kwargs)
        return
    (record,) = args
    with contextlib.suppress(Exception):  # a message that cannot be put together, which logging reports
        session.rank_zero.mutes(record.getMessage())


def _emit(session: Session, wrapped: Any, instance: logging.Handler, args: Args, kwargs: Kwargs) -> None:
    if not (session.rank_zero.in_lockstep() or session.rank_zero.is_silent()):
        wrapped(*args, **kwargs)
        return
    if session.rank_zero.is_leader:
        with session.rank_zero.alone():
            wrapped(*args, **kwargs)
        return
    (record,) = args
    try:
        instance.format(record)
    except Exception:  # noqa: BLE001 — logging reports what goes wrong in a handler, and goes on
        instance.handleError(record)


_SENDERS = ("SocketHandler", "SysLogHandler", "SMTPHandler", "HTTPHandler")


_ONCE = "rank 0 writes, rotates and sends; the others format the record"
_SENDERS = ("SocketHandler", "SysLogHandler", "SMTPHandler", "HTTPHandler")

PATCHES = (
    Patch("logging", "Logger.callHandlers", _handle, "says nothing while a model is tried"),
    Patch("logging", "FileHandler._open", _open_file, _ONCE),
    Patch("logging", "FileHandler.emit", _emit, _ONCE),
    Patch("logging.handlers", "BaseRotatingHandler.emit", _emit, _ONCE),
    Patch("logging.handlers", "WatchedFileHandler.emit", _emit, _ONCE),
    *(Patch("logging.handlers", f"{name}.emit", _emit, _ONCE) for name in _SENDERS),
)
