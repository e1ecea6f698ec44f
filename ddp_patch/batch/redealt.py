"""Batches of one size that are dealt in different ways, as one that was joined of two and one that was not."""

from __future__ import annotations

from typing import Any

from ..structure import leaves
from .forms import full_tensor, full_tensor_if_gathered
from .layout import Layout
from .names import writes_in_place
from .nested import nested
from .tensor import BatchTensor


def redealt_as(batch: BatchTensor, layout: Layout) -> BatchTensor:
    """The same batch, dealt in another way. One gather, unless every rank has it whole."""
    return BatchTensor.from_full(full_tensor(batch), layout.at(batch._layout.dim))


def dealt_alike(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    """Deal all batches of one size as the first is that would have to be gathered; None if they are dealt alike.

    Args:
        func: of torch.
        args: for it.
        kwargs: likewise.
    """
    batches = [leaf for _, leaf in leaves((args, kwargs)) if isinstance(leaf, BatchTensor)]
    if len(batches) < 2 or not any(_differs(batch, batches[0]._layout) for batch in batches) or "out" in kwargs:
        return None
    unknown = (
        () if writes_in_place(func, kwargs) else (batch for batch in batches if full_tensor_if_gathered(batch) is None)
    )
    layout = next(iter(unknown), batches[0])._layout

    def alike(value: Any) -> Any:
        return redealt_as(value, layout) if isinstance(value, BatchTensor) and _differs(value, layout) else value

    return nested(alike, args), nested(alike, kwargs)


def _differs(batch: BatchTensor, layout: Layout) -> bool:
    return batch._layout.total == layout.total and not batch._layout.lies_as(layout)
