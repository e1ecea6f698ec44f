"""Objects of libraries that rank 0 alone has: how a row says so."""

from __future__ import annotations

from typing import Any

from ..effects.shared import ANY, Library
from ..patch import Args, Kwargs, Patch, Wrapper
from ..session import Session

SHARED = "rank 0 has it; all ranks call its methods, rank 0 acts, all get what it got"


def shared(what: str, library: Library = ANY) -> Wrapper:
    """A wrapper of a function or a class whose result rank 0 has."""

    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        return session.shared(library).made(what, wrapped, args, kwargs)

    return call


def tracker(module: str, name: str) -> Patch:
    """A row for what the script's author registered."""
    return Patch(module, name, shared(f"{module}.{name}"), SHARED, when_imported=module)
