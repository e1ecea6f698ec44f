"""Traces of torch's profiler: rank 0's, once."""

from __future__ import annotations

from typing import Any

from ..effects.turns import Turns
from ..patcher import Patch, Wrapper

_WRITERS = {
    "torch.profiler.profiler": ("_KinetoProfile.export_chrome_trace", "_KinetoProfile.export_memory_timeline"),
    "torch.autograd.profiler": ("profile.export_chrome_trace", "profile.export_stacks"),
    "torch.autograd.profiler_util": ("EventList.export_chrome_trace", "EventList.export_stacks"),
}


def patches(turns: Turns) -> list[Patch]:
    """Rows for what a profiler writes."""

    def once(what: str) -> Wrapper:
        def call(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if turns.are_silent():
                return None
            if not turns.are_taken():
                return wrapped(*args, **kwargs)
            return turns.take(what, lambda: wrapped(*args, **kwargs))

        return call

    return [
        Patch(module, name, once(name.partition(".")[2]), "rank 0 writes what it measured")
        for module, names in _WRITERS.items()
        for name in names
    ]
