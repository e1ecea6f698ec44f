"""warnings.warn: its ``stacklevel`` counts the frames that one process has."""

from __future__ import annotations

from ..effects.blame import Blame
from ..patcher import Patch


def patches(blame: Blame) -> list[Patch]:
    """Rows for ``warnings.warn``."""
    return [Patch("warnings", "warn", blame.warn, "names the line that one process names", everywhere=True)]
