"""Losses of one term per row, such as triplets and CTC: each rank has those of its rows, and the ranks add up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..crossings import shard
from ..forms import full_tensor, to_local
from ..layout import Layout
from ..pending_tensor import pending_reduction
from ..tensor import BatchTensor, Rule
from ..world import World
from .arguments import bound

_OF_OLD = ("size_average", "reduce")  # before torch 1.0, of which torch warns
_FLOAT = 4  # bytes of a number; the sum over a batch of smaller ones may overflow


def row_loss(names: str, last: bool = False, fewer: str = "", takes_one: bool = False) -> Rule:
    """Make the rule of a loss whose operands have their rows in dimension 0.

    Args:
        names: of the operands. Others, such as weights of classes, every rank has whole.
        last: the last dimension of the first one is that of a vector, which has one term.
        fewer: the operand that may have fewer dimensions; rows of others would meet other dimensions.
        takes_one: of that operand, a single entry may stand for all rows.
    """
    operands = names.split()

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = bound(func, args, kwargs)
        tensors = [arguments[name] for name in operands if isinstance(arguments.get(name), Tensor)]
        one = arguments[fewer] if takes_one and _is_one(arguments[fewer]) else None
        tensors = [tensor for tensor in tensors if tensor is not one]
        layout = layout_of_rows(*tensors)
        if layout is None or not _is_usual(arguments, operands, layout) or tensors[0].dim() <= last:
            return NotImplemented  # of one sample, the batch are its entries
        others = [arguments[name] for name in operands if name != fewer]
        if any(isinstance(other, Tensor) and other.dim() != tensors[0].dim() for other in others):
            return NotImplemented
        local = {
            name: rows_of(value, layout)
            if name in operands and isinstance(value, Tensor) and value is not one
            else value
            for name, value in arguments.items()
        }
        if arguments["reduction"] == "none":
            return BatchTensor.from_local(func(**local), layout)
        loss = func(**{**local, "reduction": "sum"})
        if arguments["reduction"] == "sum":
            return pending_reduction(loss, 1)
        with torch._C.DisableTorchFunctionSubclass():  # a batch carries the shape of the whole
            shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors if tensor.dim() == tensors[0].dim()))
        terms = shape[:-1] if last else shape
        return pending_reduction(loss, terms.numel(), rows=local[operands[0]])

    return rule


def _is_one(value: Any) -> bool:
    """Tell a single entry that every rank has, and that is not trained."""
    plain = isinstance(value, Tensor) and not isinstance(value, BatchTensor)
    return plain and value.shape == (1,) and not value.requires_grad


def _is_usual(arguments: dict[str, Any], operands: list[str], layout: Layout) -> bool:
    """Tell calls without old arguments, halves or a weight that is trained, of which every rank has rows."""
    others = [value for name, value in arguments.items() if name not in operands and isinstance(value, Tensor)]
    floats = [arguments[name] for name in operands if isinstance(arguments[name], Tensor)]
    return (
        all(arguments.get(name) is None for name in _OF_OLD)
        and arguments["reduction"] in ("none", "mean", "sum")
        and not any(isinstance(other, BatchTensor) or other.requires_grad or other.dim() > 1 for other in others)
        and not any(value.is_floating_point() and value.dtype.itemsize < _FLOAT for value in floats)
        and min(layout.counts) > 0
    )


def ctc_loss(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``F.ctc_loss`` of ``[T, B, C]``, with targets ``[B, S]`` or joined; its mean divides each term by its length."""
    arguments = bound(func, args, kwargs)
    log_probs, targets = arguments["log_probs"], arguments["targets"]
    if not isinstance(log_probs, BatchTensor) or log_probs.dim() != 3 or log_probs._layout.dim != 1:
        return NotImplemented
    layout = log_probs._layout.at(0)
    lengths = {name: _lengths(arguments[name], layout) for name in ("input_lengths", "target_lengths")}
    if any(its is None for its in lengths.values()) or not _is_usual(
        arguments, ["log_probs", "targets", *lengths], layout
    ):
        return NotImplemented
    if targets.dim() == 1:
        targets = _of_joined(targets, arguments["target_lengths"], layout)
    else:
        targets = _rows_as(targets, layout)
    if targets is None:
        return NotImplemented
    local = {**arguments, **lengths, "log_probs": to_local(log_probs), "targets": targets}
    if arguments["reduction"] == "sum":
        return pending_reduction(func(**local), 1)
    terms = func(**{**local, "reduction": "none"})
    if arguments["reduction"] == "none":
        return BatchTensor.from_local(terms, layout)
    its = local["target_lengths"].to(terms).clamp(min=1)
    return pending_reduction((terms / its).sum(), layout.total, rows=local["log_probs"])


def _lengths(value: Any, layout: Layout) -> Tensor | None:
    """Give those of this rank's rows; None if there is not one for each row of the batch."""
    if isinstance(value, (list, tuple)):
        value = torch.tensor(value, dtype=torch.long, device="cpu")
    return _rows_as(value, layout) if isinstance(value, Tensor) and value.dim() == 1 else None


def _rows_as(value: Tensor, layout: Layout) -> Tensor | None:
    """Give this rank's rows of what has one for each of the batch; None if it has others, or is dealt otherwise."""
    if len(value) != layout.total or (isinstance(value, BatchTensor) and value._layout != layout):
        return None
    return rows_of(value, layout)


def _of_joined(targets: Tensor, lengths: Any, layout: Layout) -> Tensor | None:
    """Give the targets of this rank's rows of those that stand one behind the other; None if these are a batch."""
    if isinstance(targets, BatchTensor):
        return None
    every = full_tensor(lengths) if isinstance(lengths, BatchTensor) else torch.as_tensor(lengths)
    ends = every.cumsum(0).tolist()
    if ends[-1:] != [len(targets)]:
        return None  # torch says so
    numbers = layout.rows(World.get().rank).of(torch.arange(layout.total), 0).tolist()
    return torch.cat([targets[ends[number - 1] if number else 0 : ends[number]] for number in numbers])


def layout_of_rows(*tensors: Tensor) -> Layout | None:
    """Give the layout of tensors that all have their rows in dimension 0; None if there is none."""
    layout: Layout | None = None
    for tensor in tensors:
        if isinstance(tensor, BatchTensor):
            its = tensor._layout
            if its.dim != 0 or not (layout is None or layout is its or layout == its):
                return None
            layout = its
    if layout is None:
        return None
    with torch._C.DisableTorchFunctionSubclass():  # each carries the shape of the whole
        for tensor in tensors:
            if tensor.shape[:1] != (layout.total,):
                return None
    return layout


def rows_of(tensor: Tensor, layout: Layout) -> Tensor:
    """Take this rank's rows of a batch, or of what every rank has whole."""
    return to_local(tensor) if isinstance(tensor, BatchTensor) else shard(tensor, layout)


ROW_LOSSES: dict[Callable[..., Any], Rule] = {
    F.triplet_margin_loss: row_loss("anchor positive negative", last=True),
    F.cosine_embedding_loss: row_loss("input1 input2 target", last=True, fewer="target", takes_one=True),
    F.margin_ranking_loss: row_loss("input1 input2 target"),
    F.hinge_embedding_loss: row_loss("input target"),
    F.gaussian_nll_loss: row_loss("input target var", fewer="var"),
    F.multi_margin_loss: row_loss("input target", last=True, fewer="target"),
    F.multilabel_margin_loss: row_loss("input target", last=True),
    F.multilabel_soft_margin_loss: row_loss("input target", last=True),
    F.ctc_loss: ctc_loss,
}
