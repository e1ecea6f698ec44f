"""subprocess and os.system: once per job, with the same answer on every rank."""

from __future__ import annotations

import os
from typing import Any

from ..effects.commands import FUNCTIONS, METHODS
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


def _join(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
    wrapped(*args, **kwargs)
    if not args and not kwargs:
        session.commands.joined("threading.Thread.join")


def _awaited(what: str) -> Wrapper:
    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        try:
            return wrapped(*args, **kwargs)
        finally:
            session.commands.joined(what)

    return call


def _lock(what: str) -> Wrapper:
    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        return session.commands.lock(what, wrapped, args, kwargs)

    return call


def _waitpid(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    return session.commands.wait_for(wrapped, *args, **kwargs)


_EFFECT = "rank 0 runs the script's commands; all get what it got"
_HELD = "one process, which all ranks hold"
_ONCE = "of a command that all ranks hold: once"

PATCHES = (
    *(
        Patch(module.__name__, name, _once(f"{module.__name__}.{name}"), _EFFECT)
        for module, names in FUNCTIONS.items()
        for name in names
    ),
    Patch("subprocess", "Popen.__init__", _start, _HELD),
    *(Patch("subprocess", f"Popen.{name}", _ask(name), _HELD) for name in METHODS),
    *(Patch("os", name, _signal(f"os.{name}"), _ONCE) for name in ("kill", "killpg")),
    Patch("os", "waitpid", _waitpid, _ONCE),
    *(
        Patch("fcntl", name, _lock(f"fcntl.{name}"), "rank 0 has the lock, for all (filelock's as well)")
        for name in _LOCKS
    ),
    Patch("concurrent.futures._base", "Future.result", _awaited("Future.result"), "rank 0's is done as well"),
    Patch("queue", "Queue.join", _awaited("Queue.join"), "rank 0's is done as well"),
    Patch("threading", "Thread.join", _join, "rank 0's thread has ended as well"),
)
