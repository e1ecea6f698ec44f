"""matplotlib: figures are drawn on every rank, shown on rank 0, and need no display on the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import wrapt

from ..patch import Args, Kwargs, Patch
from ..session import Session


def _use(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    return wrapped(*args, **kwargs) if session.rank_zero.is_leader else wrapped("agg")


def _show(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    return wrapped(*args, **kwargs) if session.rank_zero.is_leader else None


def keep_off_screen(session: Session) -> list[Callable[[], None]]:
    """Have ranks other than 0 draw without a display as soon as the script imports matplotlib."""

    def choose(module: Any) -> None:
        if session.is_running:
            module.use("agg")

    if not session.rank_zero.is_leader:
        wrapt.register_post_import_hook(choose, "matplotlib")
    return []


_OFF_SCREEN = "on ranks other than 0 there is no display: figures are drawn and not shown"

# Trackers put themselves in front of what shows figures.
PATCHES = (
    Patch("matplotlib", "use", _use, _OFF_SCREEN, gives_way=True, when_imported="matplotlib"),
    Patch("matplotlib.pyplot", "switch_backend", _use, _OFF_SCREEN, gives_way=True, when_imported="matplotlib.pyplot"),
    Patch("matplotlib.pyplot", "show", _show, _OFF_SCREEN, gives_way=True, when_imported="matplotlib.pyplot"),
)
