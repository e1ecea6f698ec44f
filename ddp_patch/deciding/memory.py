"""Where tensors of a trial are kept, and which of them a function writes to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ..batch.tensor import BatchTensor
from ..structure import leaves


def written_by(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Give the tensors that a function writes to."""
    written = [
        args[position] if position < len(args) else kwargs.get(argument.name)
        for position, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return [tensor for tensor in tensors_of(written) if tensor.layout is torch.strided]


def tensors_of(values: Any) -> Iterator[Tensor]:
    """Give the tensors in a structure."""
    return (leaf for _, leaf in leaves(values) if isinstance(leaf, Tensor))


def storages_of(tensor: Tensor) -> list[StorageWeakRef]:
    """Where a tensor is kept; nowhere if it is sparse, of which nothing is known."""
    if isinstance(tensor, BatchTensor):
        tensor = tensor.forms[0]  # once there are rows, it is theirs
    return [StorageWeakRef(tensor.untyped_storage())] if tensor.layout is torch.strided else []
