"""Products by name, and those that sum over rows: each rank sums over its own, and one all-reduce makes the rest.

The convention of einsum is that of ``torch.einsum`` (torch 2.13, ``torch/functional.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..crossings import all_reduce, replicate, shard
from ..forms import to_local
from ..layout import Layout
from ..pending_tensor import pending_reduction
from ..tensor import BatchTensor, Rule

_Label = str | int  # a letter, or a dimension that an ellipsis stands for, counted from the right


def einsum(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.einsum("bid,bjd->bij", q, k)`` keeps rows apart, ``"bi,bj->ij"`` sums over them."""
    operands = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
    if kwargs or not args or type(args[0]) is not str or not all(map(_is_strided, operands)):
        return NotImplemented
    read = _read(args[0], [value.dim() for value in operands])
    if read is None:
        return NotImplemented
    inputs, output = read
    layout = next(value._layout for value in operands if isinstance(value, BatchTensor))
    rows = {
        labels[value._layout.dim]
        for value, labels in zip(operands, inputs, strict=True)
        if isinstance(value, BatchTensor)
    }
    if len(rows) > 1:
        return NotImplemented  # rows meet other rows
    (label,) = rows
    parts = [_local_operand(value, labels, label, layout) for value, labels in zip(operands, inputs, strict=True)]
    local = [value for value in parts if value is not None]
    if len(local) < len(parts) or output.count(label) > 1:
        return NotImplemented
    if label in output:
        return BatchTensor.from_local(func(args[0], *local), layout.at(output.index(label)))
    return summed(func(args[0], *local), local[0]) if are_summed(operands) else NotImplemented


def _local_operand(value: Tensor, labels: Sequence[_Label], label: _Label, layout: Layout) -> Tensor | None:
    """This rank's part of an operand; None if its rows do not lie side by side with the others'."""
    if isinstance(value, BatchTensor):
        lies = labels.count(label) == 1 and value._layout.lies_as(layout)
        return to_local(value) if lies else None
    if label not in labels:
        return replicate(value)
    at = labels.index(label)
    if labels.count(label) > 1 or value.shape[at] not in (1, layout.total):
        return None
    return shard(value, layout.at(at)) if value.shape[at] == layout.total else replicate(value)


def _read(equation: str, dims: Sequence[int]) -> tuple[list[list[_Label]], list[_Label]] | None:
    """Label each dimension of the operands and of the result; None if torch is to say what is wrong."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(dims):
        return None
    spans = [count - len(term.replace("...", "")) for term, count in zip(terms, dims, strict=True)]
    if any(span < 0 or (span and "..." not in term) for span, term in zip(spans, terms, strict=True)):
        return None
    most = max((span for span, term in zip(spans, terms, strict=True) if "..." in term), default=0)
    inputs = [_labels(term, span) for term, span in zip(terms, spans, strict=True)]
    if arrow:
        return inputs, _labels(right, most)
    letters = left.replace("...", "").replace(",", "")
    return inputs, _labels("..." + "".join(sorted(letter for letter in letters if letters.count(letter) == 1)), most)


def _labels(term: str, span: int) -> list[_Label]:
    before, dots, after = term.partition("...")
    return [*before, *(range(span - 1, -1, -1) if dots else ()), *after]


def product(func: Any, left: Tensor, right: Tensor) -> Any:
    """``x.T @ y``, which sums over rows; NotImplemented where every row meets every other."""
    if left.dim() == 0 or right.dim() == 0 or not are_summed((left, right)):
        return NotImplemented
    ends = left.dim() - 1, max(right.dim() - 2, 0)
    batch = left if isinstance(left, BatchTensor) else right
    assert isinstance(batch, BatchTensor)
    layout, local = batch._layout, []
    for value, at in zip((left, right), ends, strict=True):
        if isinstance(value, BatchTensor):
            if value._layout.dim != at or not value._layout.lies_as(layout):
                return NotImplemented
            local.append(to_local(value))
        elif value.shape[at] != layout.total:
            return NotImplemented  # torch says what is wrong
        else:
            local.append(shard(value, layout.at(at)))
    return summed(func(*local), local[0])


def _is_strided(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided and not value.is_nested


def are_summed(operands: Sequence[Tensor]) -> bool:
    """Tell whether parts of a product may be added: those of half precision are rounded, and it is not."""
    if not all(map(_is_strided, operands)) or torch.is_autocast_enabled(operands[0].device.type):
        return False
    return all(value.dtype.itemsize >= 4 or not value.dtype.is_floating_point for value in operands)


def summed(partial: Tensor, rows: Tensor) -> Tensor:
    """Sum over the ranks what each has summed over its rows.

    Args:
        partial: this rank's part.
        rows: that it was computed of.
    """
    return all_reduce(partial) if partial.dim() else pending_reduction(partial, 1, rows=rows)


def rules() -> list[tuple[Any, Rule]]:
    """Products by name."""
    return [(torch.einsum, einsum), (torch.functional.einsum, einsum)]
