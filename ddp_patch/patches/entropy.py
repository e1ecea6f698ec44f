"""Seeds that come from the system: rank 0 draws them, so that what the script makes of them agrees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import wrapt

from ..effects.ownership import Ownership
from ..effects.turns import Turns
from ..patcher import Patch, Wrapper

_DRAWN = (
    *(("os", "urandom"), ("uuid", "uuid1"), ("uuid", "uuid4")),
    *(("secrets", name) for name in ("token_bytes", "token_hex", "token_urlsafe", "randbelow", "randbits", "choice")),
)
_BITS = 128
_SEEDED = "without a seed, rank 0 draws one for all"


class Entropy:
    """Draws for the script, once."""

    def __init__(self, turns: Turns, ownership: Ownership) -> None:
        """Draw nothing yet.

        Args:
            turns: of the ranks.
            ownership: tells who is calling.
        """
        self._turns = turns
        self._ownership = ownership

    def shared(self, what: str, draw: Callable[[], Any]) -> Any:
        """Give what rank 0 draws, or what this rank draws for itself where the ranks are not in step."""
        if self._turns.are_taken() and self._ownership.covers_calls():
            return self._turns.follow(what, draw)
        return draw()

    def seed(self, what: str) -> int | None:
        """Give a seed that all ranks share; None to leave it to the system."""
        import secrets  # noqa: PLC0415 — seldom needed

        if self._turns.are_taken() and self._ownership.covers_calls():
            return int(self._turns.follow(what, lambda: secrets.randbits(_BITS)))
        return None


def patches(entropy: Entropy) -> list[Patch]:
    """Rows for what asks the system for random numbers."""

    def drawn(what: str) -> Wrapper:
        def call(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return entropy.shared(what, lambda: wrapped(*args, **kwargs))

        return call

    def torch_seed(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        import torch  # noqa: PLC0415 — a name that is patched

        seed = entropy.shared("torch.seed", lambda: wrapped(*args, **kwargs))
        torch.manual_seed(seed)
        return int(seed)

    return [
        *(Patch(module, name, drawn(f"{module}.{name}"), "rank 0 draws for all") for module, name in _DRAWN),
        Patch("torch.random", "seed", torch_seed, "rank 0 draws for all", also=("torch:seed",)),
        Patch("random", "seed", seeded(entropy, "random.seed"), "without a seed, rank 0 draws one for all"),
        Patch(
            "random", "Random.__init__", seeded(entropy, "random.Random"), "without a seed, rank 0 draws one for all"
        ),
    ]


def patch_when_imported(entropy: Entropy, apply: Callable[[list[Patch]], None]) -> None:
    """Take over numpy as soon as the script imports it.

    Args:
        entropy: shared by the ranks.
        apply: applies patches, unless the session has ended.
    """

    def legacy(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not (args or kwargs) or (args and args[0] is None) or kwargs.get("seed", 0) is None:
            seed = entropy.seed("numpy.random.seed")
            if seed is not None:
                return wrapped(seed % (1 << 32))
        return wrapped(*args, **kwargs)

    rows = [
        Patch("numpy.random", "default_rng", seeded(entropy, "numpy.random.default_rng"), _SEEDED),
        Patch("numpy.random", "seed", legacy, _SEEDED),
    ]
    wrapt.register_post_import_hook(lambda module: apply(rows), "numpy.random")


def seeded(entropy: Entropy, what: str) -> Wrapper:
    """A wrapper that gives a seed where the script gives none."""

    def call(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = args[0] if args else next(iter(kwargs.values()), None)
        seed = entropy.seed(what) if given is None else None
        return wrapped(*args, **kwargs) if seed is None else wrapped(seed)

    return call
