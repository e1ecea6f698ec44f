"""Random numbers and seeds that come from the system or the clock: rank 0's count, on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .ownership import Ownership
from .rank_zero import RankZero

_BITS = 128
# Of NumPy's Generator, RandomState and BitGenerator, and SeedSequence, which its functions take in place of a seed.
_DRAWS = ("bit_generator", "get_state", "random_raw", "generate_state")


class SystemRandom:
    """Draws for the script, once."""

    def __init__(self, rank_zero: RankZero, ownership: Ownership) -> None:
        """Draw nothing yet.

        Args:
            rank_zero: who acts for all ranks.
            ownership: tells who is calling.
        """
        self._rank_zero = rank_zero
        self._ownership = ownership

    def shared(self, what: str, draw: Callable[[], Any]) -> Any:
        """Give what rank 0 draws, or what this rank draws for itself where the ranks are not in step."""
        # random.SystemRandom and secrets draw through Python's own modules.
        if self._rank_zero.in_lockstep() and self._ownership.covers_calls("random", "secrets"):
            return self._rank_zero.call(what, draw)
        return draw()

    def seed_of_rank_zero(self, what: str, seed: Any) -> Any:
        """Give the seed that rank 0 came with: a script's may be its clock. A generator goes on being one's own."""
        draws = any(hasattr(seed, name) for name in _DRAWS)
        if not draws and self._rank_zero.in_lockstep() and self._ownership.covers_seeds():
            return self._scripts(what, seed)
        return seed

    def _scripts(self, what: str, seed: Any) -> Any:
        return self._rank_zero.call(what, lambda: seed)

    def _are_alike(self) -> bool:
        """Tell whether ranks draw alike."""
        return True

    def seed(self, what: str) -> int | None:
        """Give a seed that all ranks share; None to leave it to the system."""
        import secrets  # noqa: PLC0415 — seldom needed

        if self._are_alike() and self._rank_zero.in_lockstep() and self._ownership.covers_seeds():
            return int(self._rank_zero.call(what, lambda: secrets.randbits(_BITS)))
        return None
