"""subprocess and os.system: once per job, with the same answer on every rank."""

from __future__ import annotations

import os
from typing import Any

from ..effects.commands import FUNCTIONS, METHODS, Commands
from ..patcher import Patch, Wrapper

_LOCKS = ("flock", "lockf") if os.name == "posix" else ()


def patches(commands: Commands) -> list[Patch]:
    """Rows for commands."""

    def once(what: str) -> Wrapper:
        def call(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return commands.call(what, wrapped, args, kwargs)

        return call

    def ask(what: str) -> Wrapper:
        def call(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return commands.ask(what, wrapped, instance, args, kwargs)

        return call

    def start(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        commands.start(wrapped, instance, args, kwargs)

    def signal(what: str) -> Wrapper:
        def call(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            commands.signal(what, wrapped, *args, **kwargs)

        return call

    def join(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        wrapped(*args, **kwargs)
        if not args and not kwargs:
            commands.joined("threading.Thread.join")

    def awaited(what: str) -> Wrapper:
        def call(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            try:
                return wrapped(*args, **kwargs)
            finally:
                commands.joined(what)

        return call

    def lock(what: str) -> Wrapper:
        def call(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return commands.lock(what, wrapped, args, kwargs)

        return call

    def waitpid(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return commands.wait_for(wrapped, *args, **kwargs)

    effect = "rank 0 runs it; all get what it got"
    return [
        *(
            Patch(module.__name__, name, once(f"{module.__name__}.{name}"), effect, everywhere=True)
            for module, names in FUNCTIONS.items()
            for name in names
        ),
        Patch("subprocess", "Popen.__init__", start, effect),
        *(Patch("subprocess", f"Popen.{name}", ask(name), effect) for name in METHODS),
        *(Patch("os", name, signal(f"os.{name}"), effect) for name in ("kill", "killpg")),
        Patch("os", "waitpid", waitpid, effect),
        *(Patch("fcntl", name, lock(f"fcntl.{name}"), "rank 0 has the lock, for all") for name in _LOCKS),
        Patch("concurrent.futures._base", "Future.result", awaited("Future.result"), "rank 0's is done as well"),
        Patch("queue", "Queue.join", awaited("Queue.join"), "rank 0's is done as well"),
        Patch("threading", "Thread.join", join, "rank 0's thread has ended as well"),
    ]
