"""What a forward repeats for each row: ``torch.eye(3).repeat(x.size(0), 1, 1)``, ``queries.expand(x.size(0), -1)``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .crossings import replicate
from .sizes import cut
from .tensor import BatchTensor
from .world import World

SPREADING = frozenset({Tensor.repeat, Tensor.expand, Tensor.broadcast_to, Tensor.tile, torch.broadcast_to, torch.tile})


def spread(func: Any, args: tuple[Any, ...]) -> BatchTensor | None:
    """Give a batch of what a forward on batches repeats as often as there are rows; None for anything else.

    Args:
        func: one of the above.
        args: for it.
    """
    world = World.current
    if world is None or not world.tells_batch_sizes or not args or type(args[0]) not in (Tensor, nn.Parameter):
        return None
    constant, *sizes = args
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = [*sizes[0]]
    its = cut(sizes, world.rank)
    if its is None:
        return None
    local_sizes, layout = its
    at = layout.dim - (len(sizes) - constant.dim())  # in the constant; before its first where that has none
    if len(sizes) < constant.dim() or (at >= 0 and constant.shape[at] != 1):
        return None
    return BatchTensor.from_local(func(replicate(constant), local_sizes), layout)
