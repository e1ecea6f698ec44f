"""Where the caller's logging goes, and from which level on: the ranks of a call log likewise."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import NamedTuple

_STREAMS = ("stdout", "stderr")
_STYLES = {logging.StringTemplateStyle: "$", logging.StrFormatStyle: "{"}  # the first of them that fits; else "%"


class OfHandler(NamedTuple):
    """A handler that writes to the console or to a file."""

    stream: str  # empty for a file
    path: str
    encoding: str | None
    level: int
    form: tuple[str, str | None, str] | None  # format, that of dates, and style


class OfLogger(NamedTuple):
    """One logger."""

    level: int
    propagate: bool
    disabled: bool
    handlers: list[OfHandler]


def seen() -> dict[str, OfLogger]:
    """Tell how the loggers of this process are set up, by name; the root's is empty."""
    known = {
        name: logger for name, logger in logging.root.manager.loggerDict.items() if isinstance(logger, logging.Logger)
    }
    return {
        name: OfLogger(logger.level, logger.propagate, logger.disabled, [*filter(None, map(_of, logger.handlers))])
        for name, logger in {"": logging.root, **known}.items()
    }


def set_up(loggers: dict[str, OfLogger]) -> None:
    """Set the loggers of this process up so; a handler that it has already stays."""
    for name, its in loggers.items():
        logger = logging.getLogger(name or None)
        logger.setLevel(its.level)
        logger.propagate, logger.disabled = its.propagate, its.disabled
        own = {_of(handler) for handler in logger.handlers}
        for handler in its.handlers:
            if handler not in own:
                logger.addHandler(_made(handler))


def go_on_at_the_end() -> None:
    """Have the files of this process's handlers go on behind what the ranks have written to them."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = [handler for logger in loggers if isinstance(logger, logging.Logger) for handler in logger.handlers]
    for handler in handlers:
        if isinstance(handler, logging.FileHandler) and handler.stream is not None and handler.stream.seekable():
            with handler.lock or contextlib.nullcontext():
                handler.stream.seek(0, os.SEEK_END)


def _of(handler: logging.Handler) -> OfHandler | None:
    if isinstance(handler, logging.FileHandler):
        return OfHandler("", handler.baseFilename, handler.encoding, handler.level, _form(handler.formatter))
    if isinstance(handler, logging.StreamHandler):
        stream = next(
            (name for name in _STREAMS if handler.stream in (getattr(sys, name), getattr(sys, f"__{name}__"))), ""
        )
        return OfHandler(stream, "", None, handler.level, _form(handler.formatter)) if stream else None
    return None


def _form(formatter: logging.Formatter | None) -> tuple[str, str | None, str] | None:
    if formatter is None:
        return None
    style = next((sign for kind, sign in _STYLES.items() if isinstance(formatter._style, kind)), "%")
    return formatter._style._fmt, formatter.datefmt, style


def _made(its: OfHandler) -> logging.Handler:
    handler: logging.Handler = (
        logging.StreamHandler(getattr(sys, its.stream))
        if its.stream
        else logging.FileHandler(its.path, encoding=its.encoding, delay=True)
    )
    handler.setLevel(its.level)
    if its.form is not None:
        text, dates, style = its.form
        handler.setFormatter(logging.Formatter(text, dates, style))  # type: ignore[arg-type]
    return handler
