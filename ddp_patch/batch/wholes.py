"""Arguments of code that is given no batches: what one process would give it."""

from __future__ import annotations

from typing import Any

from ..structure import leaves, map_leaves
from .forms import full_tensor
from .packed import PackedRows
from .pending_tensor import PendingTensor, wait_for
from .tensor import BatchTensor


def whole_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as one process would have them."""

    def take(leaf: Any) -> Any:
        if isinstance(leaf, PackedRows):
            return leaf.whole()
        return full_tensor(leaf) if isinstance(leaf, BatchTensor) else leaf

    memo: dict[int, Any] = {}
    return map_leaves(take, args, memo), map_leaves(take, kwargs, memo)


def final_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same, with losses that all ranks have summed up."""
    for _, leaf in leaves((args, kwargs)):
        if isinstance(leaf, PendingTensor):
            wait_for(leaf)
    return whole_arguments(args, kwargs)
