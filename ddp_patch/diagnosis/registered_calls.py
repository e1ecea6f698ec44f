"""Where registered functions were computed: on a rank's rows, or by every rank."""

from __future__ import annotations

from typing import Any

import torch

from ..batch.tensor import BatchTensor
from ..batch.world import World
from ..ledger import RegisteredCalls
from ..state import State
from ..structure import leaves


class RegisteredCall:
    """Counts one call of a function that the script's author has registered."""

    def __init__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begin it.

        Args:
            name: of the function.
            args: for it.
            kwargs: likewise.
        """
        self._calls: RegisteredCalls | None = None
        self._wholes = 0
        world, session = World.current, State.session
        if world is None or session is None or session.options.view == "local":  # where all tensors are a rank's own
            return
        if world.skips_collectives or torch.compiler.is_compiling():  # tried, on copies of a module
            return
        calls = world.ledger.registered.setdefault(name, RegisteredCalls())
        if world.computes_rows() or any(isinstance(leaf, BatchTensor) for _, leaf in leaves((args, kwargs))):
            self._calls, self._wholes = calls, calls.whole
        else:
            calls.whole += 1

    def ended(self) -> None:
        """It has returned: a function that has to see whole batches was called again, with these."""
        if self._calls is not None:
            self._calls.rows += self._calls.whole == self._wholes
