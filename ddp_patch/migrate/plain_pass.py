"""What one pass over a rank-aware script knows."""

from __future__ import annotations

from typing import Any

from .bindings import Bindings
from .constants import Constants
from .script import Script


class Pass:
    """Its tree, what is known of ranks, and which names hold the same."""

    def __init__(self, script: Script, known: dict[str, Any], first: bool) -> None:
        self.script, self.first = script, first
        self.constants = Constants(script, known)
        self.bindings = Bindings(script)
