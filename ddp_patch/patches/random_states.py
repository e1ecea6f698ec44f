"""torch.get_rng_state and its return: a script that comes back to a state draws for its rows what it drew there."""

from __future__ import annotations

from typing import Any

from ..patcher import Patch
from ..replica.streams import RankStream


def patches(stream: RankStream) -> list[Patch]:
    """Rows for the state of torch's generator, ``torch.random.fork_rng`` and checkpointing by hand included.

    Args:
        stream: that this rank draws from for its rows.
    """

    def get_state(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        state = wrapped(*args, **kwargs)
        stream.marked(state)
        return state

    def set_state(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        def bind(new_state: Any) -> None:
            wrapped(new_state)
            stream.returned(new_state)

        bind(*args, **kwargs)

    beside = "and of what this rank draws for its rows"
    return [
        Patch("torch.random", "get_rng_state", get_state, beside, also=("torch:get_rng_state",)),
        Patch("torch.random", "set_rng_state", set_state, beside, also=("torch:set_rng_state",)),
    ]
