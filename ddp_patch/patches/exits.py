"""sys.exit: where the program ends, for the message when it does so on some ranks only."""

from __future__ import annotations

import threading
from typing import Any

from ..launch.watch import Watch
from ..ledger import script_line
from ..patcher import Patch


def patches(watch: Watch) -> list[Patch]:
    """Rows for ``sys.exit``.

    Args:
        watch: learns the line.
    """

    def leave(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if threading.current_thread() is threading.main_thread():
            shown = ", ".join(map(repr, args))
            watch.end = f"sys.exit({shown if len(shown) < 80 else '...'}) in {script_line()}"
        return wrapped(*args, **kwargs)

    return [Patch("sys", "exit", leave, "the line is kept", everywhere=True)]
