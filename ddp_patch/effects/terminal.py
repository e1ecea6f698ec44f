"""Standard output and error, once: the other ranks format everything and write it nowhere. Standard input is rank 0's.

Formatting still happens on every rank, since it may gather a batch. Descriptor 1 is redirected, so that output of C
code and of child processes is silenced as well. Descriptor 2 is not: what a dying process says there must be seen.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from ..batch.world import World
from ..job.crash import CrashHook


class Terminal:
    """The terminal of a job, until ``stop``."""

    def __init__(self, world: World, crash: CrashHook) -> None:
        """Silence the ranks other than 0. Every rank comes here together.

        Args:
            world: the ranks.
            crash: what a failing rank says, which is heard from every rank.
        """
        # Progress bars and colours are decided by this, and with them what is formatted.
        streams = (sys.stdin, sys.stdout, sys.stderr)
        ((self.asks, *self._are_terminals),) = world.share([tuple(map(_is_terminal, streams))])[0]
        self._crash = crash
        self._streams: list[tuple[str, Any, Any]] = []
        self._hooks: list[tuple[Any, str, Any, Any]] = []
        self._saved: list[int] = []
        if world.rank > 0:
            self._silence()

    @contextlib.contextmanager
    def speaking(self) -> Iterator[None]:
        """Let this rank speak for a while, beside the others."""
        is_silent = bool(self._saved)
        self.stop()
        try:
            with _whole_lines():
                yield
        finally:
            if is_silent:
                self._silence()

    def _silence(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            _flush(stream)
        # Whatever reads here would take a line that was typed for rank 0.
        self._saved = [_led_nowhere(0, os.O_RDONLY), _led_nowhere(1, os.O_WRONLY)]
        self._streams.clear()
        for name, is_terminal in zip(("stdout", "stderr"), self._are_terminals, strict=True):
            stream = getattr(sys, name)
            if stream is not None:
                silent = _Silent(stream, is_terminal)
                setattr(sys, name, silent)
                self._streams.append((name, stream, silent))
                _move_handlers(stream, silent)
                self._crash.stream = stream if name == "stderr" else self._crash.stream
        self._hooks = [
            (module, name, getattr(module, name), self._heard(getattr(module, name))) for module, name in _HOOKS
        ]
        for module, name, _, heard in self._hooks:
            setattr(module, name, heard)

    def _heard(self, hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def call(args: Any) -> Any:
            with self._crash.speaking():
                return hook(args)

        return call

    def stop(self) -> None:
        """Let this rank speak again."""
        if not self._saved:
            return
        for name, stream, silent in self._streams:
            _flush(silent)
            _move_handlers(silent, stream)
            if getattr(sys, name) is silent:
                setattr(sys, name, stream)
        self._crash.stream = None
        for module, name, hook, heard in self._hooks:
            if getattr(module, name) is heard:
                setattr(module, name, hook)
        for descriptor, saved in enumerate(self._saved):
            if saved >= 0:
                os.dup2(saved, descriptor)
                os.close(saved)
        self._saved = []


_HOOKS = ((threading, "excepthook"), (sys, "unraisablehook"))


class _Silent(io.TextIOWrapper):
    """Looks like a stream of rank 0's, and writes nowhere."""

    def __init__(self, stream: TextIO, is_terminal: bool) -> None:
        super().__init__(
            io.BufferedWriter(io.FileIO(os.devnull, "w")),
            getattr(stream, "encoding", None) or "utf-8",
            getattr(stream, "errors", None),
            line_buffering=True,
        )
        self.mode = getattr(stream, "mode", "w")  # type: ignore[misc]  # it can be set (CPython)
        self._stream = stream
        self._is_terminal = is_terminal

    @property
    def name(self) -> Any:
        """``<stdout>``."""
        return getattr(self._stream, "name", None)

    def fileno(self) -> int:
        """The stream's own: 1 leads nowhere, and through 2 a crash is heard."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """As on rank 0."""
        return self._is_terminal


@contextlib.contextmanager
def _whole_lines() -> Iterator[None]:
    """Write lines as wholes, which ``python -u`` (torchrun's) writes in pieces that mix with those of other ranks."""
    texts = [stream for stream in (sys.stdout, sys.stderr) if isinstance(stream, io.TextIOWrapper)]
    changed: list[tuple[io.TextIOWrapper, bool]] = []
    for stream in texts:
        with contextlib.suppress(ValueError):  # closed, or detached
            if stream.write_through:
                mode = stream.line_buffering
                stream.reconfigure(line_buffering=True, write_through=False)
                changed.append((stream, mode))
    try:
        yield
    finally:
        for stream, mode in changed:
            with contextlib.suppress(ValueError):
                stream.reconfigure(line_buffering=mode, write_through=True)


def _led_nowhere(descriptor: int, mode: int) -> int:
    """Lead a descriptor to nowhere, and give another for where it led; -1 if it was closed."""
    try:
        saved = os.dup(descriptor)
    except OSError:
        return -1
    nowhere = os.open(os.devnull, mode)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
    return saved


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except (OSError, ValueError, AttributeError):
        return False


def _flush(stream: Any) -> None:
    flush = getattr(stream, "flush", None)  # what a script puts in place of a stream may have no more than write
    if flush is not None:
        with contextlib.suppress(ValueError):  # closed, or detached
            flush()


def _move_handlers(before: Any, after: Any) -> None:
    """Have handlers of logging and loguru that were made earlier write to another stream."""
    for reference in list(logging._handlerList):  # type: ignore[attr-defined]  # there is no public list
        handler = reference()
        if isinstance(handler, logging.StreamHandler) and vars(handler).get("stream") is before:
            handler.stream = after
    loguru = getattr(getattr(sys.modules.get("loguru"), "logger", None), "_core", None)  # no public list either (0.7)
    for sink in [getattr(handler, "_sink", None) for handler in getattr(loguru, "handlers", {}).values()]:
        if getattr(sink, "_stream", None) is before:
            vars(sink)["_stream"] = after
