"""What masks of rows have picked in a forward that is observed.

How many entries that are changes with the values of the batch. On rows each rank has those of its own, and may write
them back by the same mask, as in ``distance[mask] = found[mask]``; what else is done with them, rows may not do.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor

from ..ledger import model_line
from ..structure import leaves


class Picks:
    """Remembers them, with their masks, until the forward is over."""

    def __init__(self) -> None:
        """Start without any."""
        self._picked: dict[int, tuple[weakref.ref[Any], Tensor, str]] = {}

    def add(self, picked: Any, mask_rows: Tensor, function: str) -> None:
        """Note what a function picks by a mask, at the line that is running."""
        line = model_line()
        why = f"{function} picks by a mask of rows{line and f', at {line}'}"
        self._picked[id(picked)] = weakref.ref(picked), mask_rows, why

    def is_by(self, picked: Any, mask_rows: Tensor) -> bool:
        """Tell whether something was picked by a mask."""
        return id(picked) in self._picked and self._picked[id(picked)][1] is mask_rows

    def note_use(self, seen: Any, func: Any, args: Any, kwargs: Any) -> None:
        """Note a function that is given what was picked, unless it writes that back.

        Args:
            seen: the observation.
            func: of torch.
            args: for it.
            kwargs: likewise.
        """
        if not self._picked or func == Tensor.__setitem__:
            return
        held = (self._picked.get(id(leaf)) for _, leaf in leaves((args, kwargs)))
        why = next((why for reference, _, why in filter(None, held) if reference() is not None), None)
        if why is not None:
            seen.forbid_split(why)
