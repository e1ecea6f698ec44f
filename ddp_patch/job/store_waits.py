"""Waiting for what another rank leaves in the job's store: one request, however long it takes.

A thread with a connection of its own waits inside torch, which holds it there until the entry comes (torch 2.13): in
the main thread no signal handler would run, Ctrl-C would do nothing, and nothing else could be asked meanwhile.
"""

from __future__ import annotations

import _thread
import contextlib
import math
import time
from collections.abc import Callable
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any

_LOOK = 0.25  # seconds between two looks whether waiting makes sense any more; nobody is asked
_ENDLESS = timedelta(days=20)  # torch counts milliseconds in 32 bits
_END_WAIT = 5.0  # seconds, in which a thread ends that is told to


def _nothing() -> None:
    pass


class Waiting:
    """The waits of one process. They end by themselves, or when it closes."""

    def __init__(self, store: Any, is_over: Callable[[], bool] = lambda: False) -> None:
        """Begin without a thread.

        Args:
            store: of the job.
            is_over: tells that nothing will come any more.
        """
        self._store = store
        self._is_over = is_over
        self._lines: list[_Line] = []
        self._free: list[_Line] = []

    def get(self, key: str, seconds: float = math.inf) -> bytes | None:
        """Wait for an entry.

        Args:
            key: of it.
            seconds: to wait.

        Returns:
            what it holds; None if it does not come in time, or will not come.

        Raises:
            RuntimeError: if the store is gone.
        """
        found = self.ask(key)
        end = time.monotonic() + seconds
        while True:
            try:
                value = found.get(timeout=max(min(_LOOK, end - time.monotonic()), 0.0))
            except Empty:
                if self._is_over():
                    return None
                if time.monotonic() < end:
                    continue
                # A connection can take longer than the wait: torch asks for the name of each peer (2.13), and a
                # resolver that does not answer many at once lets them wait 5 s.
                value = self._store.get(key) if self._store.check([key]) else None
            if isinstance(value, RuntimeError):
                raise value
            return value or None

    def ask(self, key: str, then: Callable[[], object] = _nothing) -> SimpleQueue[Any]:
        """Have the entry, or the RuntimeError of a store that is gone, come to a queue; an empty one when it closes.

        Args:
            key: of it.
            then: called from another thread when it has come.
        """
        try:
            line = self._free.pop()
        except IndexError:
            try:
                self._store.check([key])  # a new connection to one that is gone is tried until its time-out
            except RuntimeError as error:
                gone: SimpleQueue[Any] = SimpleQueue()
                gone.put(error)
                then()
                return gone
            line = _Line(self._store, self._free)
            self._lines.append(line)
        return line.ask(key, then)

    def close(self) -> None:
        """End the threads: one that is inside torch when the interpreter goes aborts the process (CPython 3.11)."""
        lines, self._lines, self._free = self._lines, [], []
        for line in lines:
            line.end(self._store)


class _Line:
    """A connection, and the thread that waits at it."""

    def __init__(self, store: Any, free: list[_Line]) -> None:
        self._of = store
        self._free = free
        self._asked: SimpleQueue[tuple[str, SimpleQueue[Any], Callable[[], object]] | None] = SimpleQueue()
        self._awaited: str | None = None
        # Not threading's: the script counts its own threads.
        self._running = _thread.allocate_lock()
        self._running.acquire()
        _thread.start_new_thread(self._run, ())

    def ask(self, key: str, then: Callable[[], object]) -> SimpleQueue[Any]:
        """Have the thread wait; the entry, or the error that was met, comes to the queue."""
        found: SimpleQueue[Any] = SimpleQueue()
        self._awaited = key
        self._asked.put((key, found, then))
        return found

    def end(self, store: Any) -> None:
        """End the thread, whatever it waits for: nobody else will leave it, so it is left empty."""
        self._asked.put(None)
        awaited = self._awaited  # read once: its thread forgets it when the entry comes
        if awaited is not None:
            with contextlib.suppress(RuntimeError):
                store.compare_set(awaited, "", "")
        self._running.acquire(timeout=_END_WAIT)

    def _run(self) -> None:
        store = None
        try:
            while (asked := self._asked.get()) is not None:
                key, found, then = asked
                value: Any
                try:
                    if store is None:
                        store = self._of.clone()
                        store.set_timeout(_ENDLESS)
                    value = store.get(key)
                except RuntimeError as error:
                    value = error
                self._awaited = None
                self._free.append(self)  # before it is told, so that the next wait finds this one
                found.put(value)
                then()
        finally:
            self._running.release()
