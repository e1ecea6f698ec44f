"""Batches that a script deals itself, out of tensors that every rank holds whole."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from ..batch.shard_batch import count_rows
from ..batch.world import World
from ..diagnosis.first_batches import compare_dealt
from ..ledger import script_line
from ..structure import leaves, map_leaves
from .weights import Share, Weights


class Dealing:
    """Gives this rank's rows: every Nth, as loaders deal them."""

    def __init__(self, world: World, weights: Weights) -> None:
        """Start with no line seen.

        Args:
            world: the ranks.
            weights: of batches of which ranks have not equally many rows.
        """
        self._world = world
        self._weights = weights
        self._lines: set[str] = set()  # of the script, where every rank was seen to give the same

    def of(self, data: Any, dim: int) -> Any:
        """Deal all tensors in a structure.

        Args:
            data: a tensor, or a structure of them; 0-dim tensors and everything else stay what they are.
            dim: the batch dimension of each.

        Raises:
            BatchError: when the tensors do not have one number of rows.
            LockstepError: on every rank, when a line's first tensors differ between ranks.
        """
        rows = count_rows(data, dim)
        line = script_line()
        if line not in self._lines:
            self._lines.add(line)
            compare_dealt(self._world, {path: leaf for path, leaf in leaves(data) if isinstance(leaf, torch.Tensor)})
        indices = self._indices(rows)

        def dealt(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or not leaf.dim():
                return leaf
            return leaf.index_select(dim, torch.tensor(indices, device=leaf.device, dtype=torch.long))

        return map_leaves(dealt, data)

    def _indices(self, rows: int) -> list[int]:
        """Choose this rank's, and say what they count; rows that do not go round are dealt as those of loaders are."""
        rank, size, is_exact = self._world.rank, self._world.size, self._weights.is_used
        self._weights.dealt(Share.of(rows, rank, size) if is_exact else None)
        order = [*range(rows)]
        if rows < size or not is_exact:
            order += itertools.islice(itertools.cycle(range(rows)), -rows % size)
        return order[rank::size]
