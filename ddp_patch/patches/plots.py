"""matplotlib: figures are drawn on every rank, shown on rank 0, and need no display on the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import wrapt

from ..effects.turns import Turns
from ..patcher import Patch


def patch_when_imported(turns: Turns, apply: Callable[[list[Patch]], None]) -> None:
    """Take over matplotlib as soon as the script imports it.

    Args:
        turns: of the ranks.
        apply: applies patches, unless the session has ended.
    """
    if turns.is_leader:
        return

    def use(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return wrapped("agg")

    def show(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        return None

    def take_over(module: Any) -> None:
        apply([Patch("matplotlib", "use", use, "agg on ranks other than 0")])
        module.use("agg")

    rows = [
        Patch("matplotlib.pyplot", "switch_backend", use, "agg on ranks other than 0"),
        Patch("matplotlib.pyplot", "show", show, "rank 0 shows"),
    ]
    wrapt.register_post_import_hook(take_over, "matplotlib")
    wrapt.register_post_import_hook(lambda module: apply(rows), "matplotlib.pyplot")
