"""IPython in a script: what is typed into it happens once, with the same outcome on every rank."""

from __future__ import annotations

from typing import Any

from ..patch import Args, Kwargs, Patch, Wrapper
from ..session import Session

_SHELL = "IPython.core.interactiveshell"
_TERMINAL = "IPython.terminal.interactiveshell"
_IN_TERMINAL = "TerminalInteractiveShell.system"
_EXIT_CODE = "_exit_code"  # where IPython leaves it for the user


def _once(what: str) -> Wrapper:
    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        if not session.rank_zero.in_lockstep():
            return wrapped(*args, **kwargs)

        def leaders() -> Any:
            return wrapped(*args, **kwargs), instance.user_ns.get(_EXIT_CODE)

        result, instance.user_ns[_EXIT_CODE] = session.rank_zero.barrier_call(what, leaders)
        return result

    return call


def _remember(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
    wrapped(*args, **kwargs if session.rank_zero.is_leader else {**kwargs, "enabled": False})


def _measure(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    taken = wrapped(*args, **kwargs)
    return session.rank_zero.call("%timeit", lambda: taken) if session.rank_zero.in_lockstep() else taken


_EFFECT = "rank 0 runs `!commands`; all get what it got"

PATCHES = (
    # The terminal's shell has a name of its own for one of them.
    Patch(
        _SHELL,
        "InteractiveShell.system_raw",
        _once("!"),
        _EFFECT,
        also=(f"{_TERMINAL}:TerminalInteractiveShell.system",),
        when_imported=_TERMINAL,
    ),
    Patch(
        _SHELL,
        "InteractiveShell.system_piped",
        _once("!"),
        _EFFECT,
        also=(f"{_SHELL}:InteractiveShell.system",),
        when_imported=_TERMINAL,
    ),
    Patch(_SHELL, "InteractiveShell.getoutput", _once("!!"), _EFFECT, when_imported=_TERMINAL),
    Patch(
        "IPython.core.history",
        "HistoryManager.__init__",
        _remember,
        "rank 0 keeps the history",
        when_imported=_TERMINAL,
    ),
    Patch(
        "IPython.core.magics.execution",
        "Timer.timeit",
        _measure,
        "rank 0's time decides how often `%timeit` runs",
        when_imported=_TERMINAL,
    ),
)
