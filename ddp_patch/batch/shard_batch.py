"""Make a batch of what a script has without a loader."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..errors import BatchError
from ..structure import leaves, map_leaves
from .layout import Layout
from .shared_memory import look_through
from .tensor import BatchTensor
from .world import World


def deal_structure(data: Any, dim: int, world: World) -> tuple[Any, int]:
    """Make batches of all tensors in a structure.

    Args:
        data: a tensor, or a structure of them; 0-dim tensors and everything else stay what they are.
        dim: the batch dimension of each.
        world: the ranks to deal to.

    Returns:
        the batches, and how many rows they have. Fewer rows than ranks stay whole on every rank.

    Raises:
        BatchError: when the tensors do not have one number of rows.
    """
    rows = count_rows(data, dim)

    def dealt(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or isinstance(leaf, BatchTensor) or not leaf.dim():
            return leaf
        layout = Layout.deal(rows, dim % leaf.dim(), world.size)
        if layout is None:
            return leaf
        batch = BatchTensor.from_full(leaf, layout)
        look_through(batch)  # one process has the script's own tensor
        return batch

    return map_leaves(dealt, data), rows


def count_rows(data: Any, dim: int) -> int:
    """Count the rows of the tensors in a structure.

    Args:
        data: a tensor, or a structure of them.
        dim: the batch dimension of each.

    Raises:
        BatchError: when the tensors do not have one number of rows.
    """
    sizes = {path: _rows(leaf, dim, path) for path, leaf in leaves(data) if isinstance(leaf, Tensor) and leaf.dim()}
    if not sizes:
        raise BatchError(
            f"ddp_patch.shard_batch() got {type(data).__name__} without a tensor that has rows. Pass the tensors."
        )
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{size} in data{path}" for path, size in sizes.items())
        raise BatchError(
            f"ddp_patch.shard_batch(data, dim={dim}): the tensors have different numbers of rows ({listed}), so they "
            "are not one batch. Pass them in separate calls, each with its own dim."
        )
    return next(iter(sizes.values()))


def _rows(leaf: Tensor, dim: int, path: str) -> int:
    if not -leaf.dim() <= dim < leaf.dim():
        raise BatchError(
            f"ddp_patch.shard_batch(data, dim={dim}): data{path} of shape {tuple(leaf.shape)} has no such dimension."
        )
    return leaf.shape[dim]
