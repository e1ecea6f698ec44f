"""Random numbers and seeds that come from the system or the clock: rank 0's count, on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .ownership import Ownership
from .turns import Turns

_BITS = 128


class SystemRandom:
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

    def given(self, what: str, seed: Any) -> Any:
        """Give the seed that rank 0 came with: a script's may be its clock."""
        if self._turns.are_taken() and self._ownership.covers_seeds():
            return self._scripts(what, seed)
        return seed

    def _scripts(self, what: str, seed: Any) -> Any:
        return self._turns.follow(what, lambda: seed)

    def _are_alike(self) -> bool:
        """Tell whether ranks draw alike."""
        return True

    def seed(self, what: str) -> int | None:
        """Give a seed that all ranks share; None to leave it to the system."""
        import secrets  # noqa: PLC0415 — seldom needed

        if self._are_alike() and self._turns.are_taken() and self._ownership.covers_calls():
            return int(self._turns.follow(what, lambda: secrets.randbits(_BITS)))
        return None
