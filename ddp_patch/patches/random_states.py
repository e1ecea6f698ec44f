"""torch.get_rng_state and its return: a script that comes back to a state draws for its rows what it drew there."""

from __future__ import annotations

from typing import Any

from ..patch import Args, Kwargs, Patch
from ..session import Session


def _get_state(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    state = wrapped(*args, **kwargs)
    session.generators.marked(state)
    return state


def _set_state(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
    def bind(new_state: Any) -> None:
        wrapped(new_state)
        session.generators.returned(new_state)

    bind(*args, **kwargs)


_BESIDE = "the state of what this rank draws for its rows is kept and comes back with it"

PATCHES = (
    Patch("torch.random", "get_rng_state", _get_state, _BESIDE, also=("torch:get_rng_state",)),
    Patch("torch.random", "set_rng_state", _set_state, _BESIDE, also=("torch:set_rng_state",)),
)
