"""Traces of torch's profiler: rank 0's, once."""

from __future__ import annotations

from typing import Any

from ..patch import Args, Kwargs, Patch, Wrapper
from ..session import Session

_WRITERS = {
    "torch.profiler.profiler": ("_KinetoProfile.export_chrome_trace", "_KinetoProfile.export_memory_timeline"),
    "torch.autograd.profiler": ("profile.export_chrome_trace", "profile.export_stacks"),
    "torch.autograd.profiler_util": ("EventList.export_chrome_trace", "EventList.export_stacks"),
}


def _once(what: str) -> Wrapper:
    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        if session.rank_zero.is_silent():
            return None
        if not session.rank_zero.in_lockstep():
            return wrapped(*args, **kwargs)
        return session.rank_zero.barrier_call(what, lambda: wrapped(*args, **kwargs))

    return call


PATCHES = tuple(
    Patch(module, name, _once(name.partition(".")[2]), "rank 0 writes what it measured")
    for module, names in _WRITERS.items()
    for name in names
)
