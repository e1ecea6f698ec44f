"""Batches of what a script has without a loader, compared among the ranks where a line makes its first."""

from __future__ import annotations

from typing import Any

import torch

from ..batch.shard_batch import deal_structure
from ..batch.tensor import BatchTensor
from ..batch.world import World
from ..ledger import script_line
from ..structure import leaves
from .first_batches import compare_dealt


class Dealing:
    """Makes batches of tensors that every rank holds whole."""

    def __init__(self, world: World) -> None:
        """Start with no line seen."""
        self._world = world
        self._lines: set[str] = set()  # of the script, where every rank was seen to give the same

    def of(self, data: Any, dim: int) -> tuple[Any, int]:
        """Make batches of all tensors in a structure, and count their rows, as ``deal_structure`` does.

        Raises:
            LockstepError: on every rank, when a line's first tensors differ between ranks.
        """
        dealt, rows = deal_structure(data, dim, self._world)
        line = script_line()
        if line not in self._lines:
            self._lines.add(line)
            whole = {path: leaf for path, leaf in leaves(data) if isinstance(leaf, torch.Tensor)}
            compare_dealt(self._world, {p: leaf for p, leaf in whole.items() if not isinstance(leaf, BatchTensor)})
        return dealt, rows
