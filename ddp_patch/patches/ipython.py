"""IPython in a script: what is typed into it happens once, with the same outcome on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import wrapt

from ..effects.turns import Turns
from ..patcher import Patch, Wrapper

_SHELL = "IPython.core.interactiveshell"
_TERMINAL = "IPython.terminal.interactiveshell"
_IN_TERMINAL = "TerminalInteractiveShell.system"
_EXIT_CODE = "_exit_code"  # where IPython leaves it for the user


def patch_when_imported(turns: Turns, apply: Callable[[list[Patch]], None]) -> None:
    """Take over IPython's shell as soon as it is imported.

    Args:
        turns: of the ranks.
        apply: applies patches, unless the session has ended.
    """

    def once(what: str) -> Wrapper:
        def call(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if not turns.are_taken():
                return wrapped(*args, **kwargs)

            def leaders() -> Any:
                return wrapped(*args, **kwargs), instance.user_ns.get(_EXIT_CODE)

            result, instance.user_ns[_EXIT_CODE] = turns.take(what, leaders)
            return result

        return call

    def remember(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        wrapped(*args, **kwargs if turns.is_leader else {**kwargs, "enabled": False})

    def measure(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        taken = wrapped(*args, **kwargs)
        return turns.follow("%timeit", lambda: taken) if turns.are_taken() else taken

    effect = "rank 0 runs it; all get what it got"
    rows = [
        # The terminal's shell has a name of its own for one of them.
        Patch(_SHELL, "InteractiveShell.system_raw", once("!"), effect, also=(f"{_TERMINAL}:{_IN_TERMINAL}",)),
        Patch(_SHELL, "InteractiveShell.system_piped", once("!"), effect, also=(f"{_SHELL}:InteractiveShell.system",)),
        Patch(_SHELL, "InteractiveShell.getoutput", once("!!"), effect),
        Patch("IPython.core.history", "HistoryManager.__init__", remember, "rank 0 keeps the history"),
        Patch("IPython.core.magics.execution", "Timer.timeit", measure, "rank 0's time decides how often"),
    ]
    wrapt.register_post_import_hook(lambda module: apply(rows), _TERMINAL)
