"""Where the caller's logging goes, and from which level on: the ranks of a call log likewise."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import pickle
import sys
from collections.abc import Mapping
from typing import NamedTuple

import cloudpickle

_STREAMS = ("stdout", "stderr")


class OfHandler(NamedTuple):
    """A handler that writes to the console or to a file."""

    stream: str  # empty for a file
    path: str
    encoding: str | None
    level: int
    how: bytes  # its formatter and its filters, pickled by value; empty where they cannot be


class OfLogger(NamedTuple):
    """One logger."""

    level: int
    propagate: bool
    disabled: bool
    handlers: list[OfHandler]
    is_modules: bool  # of its name, which may have set it up


def seen() -> dict[str, OfLogger]:
    """Tell how the loggers of this process are set up, by name; the root's is empty."""
    found = {"": logging.root, **logging.root.manager.loggerDict}
    return {
        name: OfLogger(
            logger.level,
            logger.propagate,
            logger.disabled,
            [handler for handler in map(_of, logger.handlers) if handler is not None],
            name in sys.modules,
        )
        for name, logger in found.items()
        if isinstance(logger, logging.Logger)
    }


def set_up(loggers: Mapping[str, OfLogger]) -> None:
    """Set the loggers of this process up so."""
    for name, its in loggers.items():
        if its.handlers and its.is_modules:
            with contextlib.suppress(Exception):  # it adds its handlers now, and not beside those below
                importlib.import_module(name)
        logger = logging.getLogger(name or None)
        logger.setLevel(its.level)
        logger.propagate, logger.disabled = its.propagate, its.disabled
        existing = {_target(handler): handler for handler in logger.handlers}
        for spec in its.handlers:
            handler = existing.get((spec.stream, spec.path))
            if handler is None:
                logger.addHandler(handler := _made(spec))
            handler.setLevel(spec.level)
            with contextlib.suppress(Exception):  # what these processes cannot have
                handler.formatter, handler.filters = pickle.loads(spec.how)


def go_on_at_the_end() -> None:
    """Have the files of this process's handlers go on behind what the ranks have written to them."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = [handler for logger in loggers if isinstance(logger, logging.Logger) for handler in logger.handlers]
    for handler in handlers:
        if isinstance(handler, logging.FileHandler) and handler.stream is not None and handler.stream.seekable():
            with handler.lock or contextlib.nullcontext():
                handler.stream.seek(0, os.SEEK_END)


def _of(handler: logging.Handler) -> OfHandler | None:
    target = _target(handler)
    if target is None:
        return None
    try:
        how = cloudpickle.dumps((handler.formatter, handler.filters))
    except Exception:  # noqa: BLE001 — pickling runs foreign code
        how = b""
    return OfHandler(*target, getattr(handler, "encoding", None), handler.level, how)


def _target(handler: logging.Handler) -> tuple[str, str] | None:
    if isinstance(handler, logging.FileHandler):
        return "", handler.baseFilename
    for name in _STREAMS:
        if getattr(handler, "stream", None) in (getattr(sys, name), getattr(sys, f"__{name}__")):
            return name, ""
    return None


def _made(its: OfHandler) -> logging.Handler:
    if its.stream:
        return logging.StreamHandler(getattr(sys, its.stream))
    return logging.FileHandler(its.path, encoding=its.encoding, delay=True)
