"""subprocess and os.system: once per job, with the same answer on every rank."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import ALL_COMPLETED
from typing import Any

from ..effects.commands import FUNCTIONS, METHODS
from ..errors import LockstepError
from ..patch import Args, Kwargs, Patch, Wrapper
from ..session import Session

_LOCKS = ("flock", "lockf") if os.name == "posix" else ()


def _once(what: str) -> Wrapper:
    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        return session.commands.call(what, wrapped, args, kwargs)

    return call


def _ask(what: str) -> Wrapper:
    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        return session.commands.ask(what, wrapped, instance, args, kwargs)

    return call


def _start(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
    session.commands.start(wrapped, instance, args, kwargs)


def _signal(what: str) -> Wrapper:
    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
        session.commands.signal(what, wrapped, *args, **kwargs)

    return call


def _pumped(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    """GitPython has threads read what a command says: those of other ranks would find nothing."""

    def bind(
        process: Any,
        stdout_handler: Any,
        stderr_handler: Any,
        finalizer: Any = None,
        decode_streams: bool = True,
        kill_after_timeout: float | None = None,
    ) -> Any:
        popen = getattr(process, "proc", process)
        if not session.commands.holds(popen):
            return wrapped(process, stdout_handler, stderr_handler, finalizer, decode_streams, kill_after_timeout)
        said = popen.communicate(timeout=kill_after_timeout)
        for text, handler in zip(said, (stdout_handler, stderr_handler), strict=True):
            lines: Any = io.StringIO(text) if isinstance(text, str) else io.BytesIO(text or b"")
            for line in lines if handler else ():
                handler(line.decode(sys.getfilesystemencoding()) if decode_streams else line)
        return finalizer(process) if finalizer else None

    return bind(*args, **kwargs)


def _in_loop(what: str) -> Wrapper:
    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        if not session.rank_zero.in_lockstep() or not session.owners.covers_calls():
            return wrapped(*args, **kwargs)
        raise LockstepError(
            f"asyncio.{what} would run the command once on every rank, each with an output of its own. Write "
            "`subprocess.run(command)`, which runs it once, or `with ddp_patch.per_rank():` around it."
        )

    return call


def _join(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
    wrapped(*args, **kwargs)
    if (args[0] if args else kwargs.get("timeout")) is None:
        session.commands.joined("threading.Thread.join", "threading")


def _ended(what: str, when_ended: bool, wait: Callable[[Any], Any]) -> Wrapper:
    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> bool:
        return session.commands.ended(what, lambda: wrapped(*args, **kwargs), when_ended, lambda: wait(instance))

    return call


def _awaited(what: str, *through: str) -> Wrapper:
    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        try:
            return wrapped(*args, **kwargs)
        finally:
            session.commands.joined(what, *through)

    return call


def _wait(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    def bind(fs: Any, timeout: float | None = None, return_when: str = ALL_COMPLETED) -> Any:
        found = wrapped(fs, timeout, return_when)
        if timeout is None and return_when == ALL_COMPLETED:
            session.commands.joined("concurrent.futures.wait", "concurrent")
        return found

    return bind(*args, **kwargs)


def _shut(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
    wrapped(*args, **kwargs)
    if args[0] if args else kwargs.get("wait", True):
        session.commands.joined("Executor.shutdown", "concurrent", *_BARS)


def _ready(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
    wrapped(*args, **kwargs)
    if (args[0] if args else kwargs.get("timeout")) is None:
        session.commands.joined("AsyncResult.wait", "multiprocessing")


def _next(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    try:
        return wrapped(*args, **kwargs)
    except StopIteration:  # there may be many of them: the ranks meet once
        session.commands.joined("Pool.imap", "multiprocessing", *_BARS)
        raise


def _parallel(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    found = _JOINED(session, wrapped, instance, args, kwargs)

    def drained() -> Iterator[Any]:
        yield from found
        session.commands.joined("joblib.Parallel", *_BARS)

    return found if isinstance(found, list) else drained()  # return_as="generator"


def _lock(what: str) -> Wrapper:
    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        return session.commands.lock(what, wrapped, args, kwargs)

    return call


def _waitpid(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    return session.commands.wait_for(wrapped, *args, **kwargs)


_EFFECT = "rank 0 runs the script's commands; all get what it got"
_ONE_PROCESS = "one process, which all ranks hold"
_DONE = "rank 0's is done as well"
_ANSWER = "asked by the script: whether rank 0's is"
_ASKED = f"{_ANSWER}; if it has ended, this rank's is waited for"
_BARS = ("tqdm", "rich")  # they read for the script what it hands them, and have pools work for it
_JOINED = _awaited("joblib.Parallel")
_FUTURES, _THREAD, _PROCESS, _POOL = (
    "concurrent.futures._base",
    "concurrent.futures.thread",
    "concurrent.futures.process",
    "multiprocessing.pool",
)
_ONCE = "of a command that all ranks hold: once"

PATCHES = (
    *(
        Patch(module.__name__, name, _once(f"{module.__name__}.{name}"), _EFFECT)
        for module, names in FUNCTIONS.items()
        for name in names
    ),
    Patch("invoke.runners", "Runner.run", _once("invoke.run"), _EFFECT, when_imported="invoke"),
    Patch(
        "git.cmd",
        "handle_process_output",
        _pumped,
        "of a command that all ranks hold: in the script's thread",
        when_imported="git",
    ),
    *(
        Patch(
            "asyncio.subprocess",
            name,
            _in_loop(name),
            "refused where the script calls it, with what to write",
            also=(f"asyncio:{name}",),
            when_imported="asyncio",
        )
        for name in ("create_subprocess_exec", "create_subprocess_shell")
    ),
    Patch("subprocess", "Popen.__init__", _start, _ONE_PROCESS),
    *(Patch("subprocess", f"Popen.{name}", _ask(name), _ONE_PROCESS) for name in METHODS),
    *(Patch("os", name, _signal(f"os.{name}"), _ONCE) for name in ("kill", "killpg")),
    Patch("os", "waitpid", _waitpid, _ONCE),
    *(
        Patch(
            "fcntl",
            name,
            _lock(f"fcntl.{name}"),
            "rank 0 has the lock, for all (filelock's as well); of a library's cache, each rank",
        )
        for name in _LOCKS
    ),
    Patch("threading", "Thread.is_alive", _ended("Thread.is_alive", False, lambda thread: thread.join()), _ASKED),
    Patch(_FUTURES, "Future.done", _ended("Future.done", True, lambda future: futures.wait([future])), _ASKED),
    Patch(_FUTURES, "Future.running", _ended("Future.running", False, lambda future: None), _ANSWER),
    Patch(
        _POOL,
        "ApplyResult.ready",
        _ended("AsyncResult.ready", True, lambda result: result.wait()),
        _ASKED,
        when_imported=_POOL,
    ),
    Patch(_FUTURES, "Future.result", _awaited("Future.result", "concurrent", *_BARS), _DONE),
    Patch(_FUTURES, "Future.exception", _awaited("Future.exception", "concurrent"), _DONE),
    Patch(_FUTURES, "wait", _wait, _DONE),
    Patch("concurrent.futures.thread", "ThreadPoolExecutor.shutdown", _shut, _DONE, when_imported=_THREAD),
    Patch("concurrent.futures.process", "ProcessPoolExecutor.shutdown", _shut, _DONE, when_imported=_PROCESS),
    Patch(_POOL, "ApplyResult.wait", _ready, _DONE, when_imported=_POOL),
    Patch(
        "multiprocessing.pool",
        "IMapIterator.next",
        _next,
        _DONE,
        also=("multiprocessing.pool:IMapIterator.__next__",),
        when_imported=_POOL,
    ),
    Patch(_POOL, "Pool.join", _awaited("Pool.join", "multiprocessing"), _DONE, when_imported=_POOL),
    Patch("queue", "Queue.join", _awaited("Queue.join", "queue"), _DONE),
    Patch("threading", "Thread.join", _join, "rank 0's thread has ended as well"),
    Patch("joblib.parallel", "Parallel.__call__", _parallel, f"called by the script: {_DONE}", when_imported="joblib"),
)
