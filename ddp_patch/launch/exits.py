"""sys.exit: where the program ends, for the message when it does so on some ranks only."""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any, NoReturn

from ..ledger import script_line

_SHOWN = 80  # characters


class ExitLine:
    """A ``sys.exit`` that keeps its line. SystemExit leaves no trace of where it was raised (CPython 3.11)."""

    def __init__(self) -> None:
        """Take the place of the one that is there."""
        self.end = "of the program"
        real = sys.exit

        @functools.wraps(real)
        def leave(*args: Any) -> NoReturn:
            if threading.current_thread() is threading.main_thread():
                shown = ", ".join(map(repr, args))
                self.end = f"sys.exit({shown if len(shown) < _SHOWN else '...'}) in {script_line()}"
            real(*args)

        self._real, self._own = real, leave
        sys.exit = leave

    def uninstall(self) -> None:
        """Give the previous one back, unless somebody put another on top."""
        if sys.exit is self._own:
            sys.exit = self._real
