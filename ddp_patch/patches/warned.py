"""warnings.warn: its ``stacklevel`` counts the frames that one process has."""

from __future__ import annotations

from typing import Any

from ..patch import Args, Kwargs, Patch
from ..session import Session


def _warn(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
    session.console.blame.warn(wrapped, instance, args, kwargs)


_EFFECT = "names the line that one process names; so do warnings of C++ code"

PATCHES = (Patch("warnings", "warn", _warn, _EFFECT),)
