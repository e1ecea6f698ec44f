"""sys.exit: keeps its line, for the message when the program ends on some ranks only."""

from __future__ import annotations

import threading
from typing import Any

from ..launch.watch import Watch
from ..ledger import script_line
from ..patcher import Patch

_SHOWN = 80  # characters


def patches(watch: Watch) -> list[Patch]:
    """Rows for what ends a program. SystemExit leaves no trace of where it was raised (CPython 3.11).

    Args:
        watch: is told where.
    """

    def leave(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if threading.current_thread() is threading.main_thread():
            shown = ", ".join(map(repr, args))
            watch.end = f"sys.exit({shown if len(shown) < _SHOWN else '...'}) in {script_line()}"
        return wrapped(*args, **kwargs)

    effect = "the same; its line is kept, for when not all ranks come to it"
    return [Patch("sys", "exit", leave, effect, everywhere=True, gives_way=True)]
