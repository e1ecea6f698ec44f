"""sys.exit: keeps its line, for the message when the program ends on some ranks only."""

from __future__ import annotations

from typing import Any

from .. import script_thread
from ..ledger import script_line
from ..patch import Args, Kwargs, Patch
from ..session import Session

_SHOWN = 80  # characters


def _leave(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    if script_thread.is_here():
        shown = ", ".join(map(repr, args))
        session.job.watch.end = f"sys.exit({shown if len(shown) < _SHOWN else '...'}) in {script_line()}"
    return wrapped(*args, **kwargs)


_EFFECT = "the same; its line is kept, for when not all ranks come to it"

PATCHES = (Patch("sys", "exit", _leave, _EFFECT, gives_way=True),)
