"""Losses: rows are summed where they are, and one small all-reduce makes the whole batch's loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..crossings import all_reduce, replicate
from ..forms import full_tensor_if_gathered
from ..pending_tensor import pending_reduction
from ..tensor import BatchTensor, Rule
from .arguments import bound
from .elementwise import broadcast_dims, common_layout, cutter
from .row_losses import ROW_LOSSES, layout_of_rows, rows_of


def elementwise_loss(operands: tuple[str, ...]) -> Rule:
    """Make the rule of a loss whose value is the mean, sum or list of one term per element.

    Args:
        operands: the arguments that broadcast against each other.
    """

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = bound(func, args, kwargs)
        if arguments.get("weight") is not None and "weight" not in operands:
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():  # each carries the shape of the whole
            if arguments["input"].shape != arguments["target"].shape:
                return NotImplemented  # torch warns, or fails, naming both shapes
        tensors = [arguments[name] for name in operands if isinstance(arguments.get(name), Tensor)]
        layout = common_layout(tensors)
        if layout is None or (arguments["reduction"] == "batchmean" and _is_of_old(arguments)):
            return NotImplemented  # kl_div divides by the batch once more, whatever the old arguments say (torch 2.13)
        arguments = _with_reduction(func, arguments)
        cut = cutter(layout, broadcast_dims(tensors))
        local = {name: cut(value) if name in operands else value for name, value in arguments.items()}
        narrow = _widen(local, operands) if arguments["reduction"] != "none" else None
        reduction = arguments["reduction"]
        if reduction == "none":
            return BatchTensor.from_local(func(**local), layout)
        if reduction == "mean":
            with torch._C.DisableTorchFunctionSubclass():
                shape = torch.broadcast_shapes(*[tensor.shape for tensor in tensors])
            loss = func(**{**local, "reduction": "sum"})
            return pending_reduction(loss, shape.numel(), rows=local["input"], dtype=narrow)
        if reduction == "batchmean":  # kl_div: over the first dimension of the input
            loss = func(**{**local, "reduction": "sum"})
            return pending_reduction(loss, arguments["input"].shape[0], dtype=narrow, node="DivBackward0")
        return pending_reduction(func(**local), 1, dtype=narrow) if reduction == "sum" else NotImplemented

    return rule


def class_loss(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``cross_entropy`` and ``nll_loss``, whose mean is over the weights of the classes that are not ignored."""
    arguments = bound(func, args, kwargs)
    layout = layout_of_rows(arguments["input"], arguments["target"])
    if layout is None or arguments["input"].dim() == 1:
        return NotImplemented  # of one sample, the batch are the classes
    arguments = _with_reduction(func, arguments)
    local = {**arguments, "input": rows_of(arguments["input"], layout), "target": rows_of(arguments["target"], layout)}
    weight = arguments["weight"]
    if weight is not None:
        local["weight"] = replicate(weight)
    if arguments["reduction"] == "none":
        return BatchTensor.from_local(func(**local), layout)
    narrow = _widen(local, _WEIGHTED)
    if arguments["reduction"] == "sum":
        return pending_reduction(func(**local), 1, dtype=narrow)
    if arguments["reduction"] != "mean":
        return NotImplemented
    loss = func(**{**local, "reduction": "sum"})
    target: Tensor = local["target"]
    if target.is_floating_point():  # class probabilities: the mean is over the batch
        return pending_reduction(
            loss, arguments["target"].numel() // arguments["target"].shape[1], dtype=narrow, node="DivBackward1"
        )
    whole = (
        full_tensor_if_gathered(arguments["target"])
        if isinstance(arguments["target"], BatchTensor)
        else arguments["target"]
    )
    if whole is not None and not (weight is not None and weight.requires_grad):  # every rank can count them
        count = _counted(whole, arguments["ignore_index"], weight).to(loss.dtype)
        return pending_reduction(loss, count, rows=local["input"], dtype=narrow)
    count = _counted(target, arguments["ignore_index"], local["weight"])
    if weight is None:
        with torch._C.DisableTorchFunctionSubclass():
            expected = arguments["target"].numel()
        return pending_reduction(loss, expected, count, local["input"], dtype=narrow)
    if not weight.requires_grad:
        return pending_reduction(loss, math.nan, count, dtype=narrow)
    both = all_reduce(torch.stack([loss, count]))
    mean = both[0] / both[1]
    return mean if narrow is None else mean.to(narrow)


def _counted(target: Tensor, ignored: int, weight: Tensor | None) -> Tensor:
    """How many targets are not to be ignored, or the weights of their classes."""
    if target.dtype is not torch.int64:
        target = target.long()  # torch takes bytes as well
    kept = target != ignored
    return kept.sum() if weight is None else (weight[target.where(kept, 0)] * kept).sum()


def _widen(local: dict[str, Any], names: tuple[str, ...]) -> torch.dtype | None:
    """Compute half-precision losses in float, since the sum of a batch overflows; gives the dtype to go back to."""
    narrow = local["input"].dtype
    if narrow.itemsize >= 4:
        return None
    operands = {name: local[name] for name in names if isinstance(local.get(name), Tensor)}
    floats = {name: value for name, value in operands.items() if value.is_floating_point()}
    if "input" not in floats or {value.dtype for value in floats.values()} != {narrow}:
        return None  # of several dtypes torch makes a wider one, or fails
    local.update({name: value.float() for name, value in floats.items()})
    # Autocast has all of these in float32, and gives it back.
    return None if torch.is_autocast_enabled(local["input"].device.type) else narrow


def _with_reduction(func: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Put ``reduction`` in the place of what stood for it before torch 1.0, of which torch warns."""
    averages, reduces = arguments.get("size_average"), arguments.get("reduce")
    if averages is None and reduces is None:
        if func is F.kl_div and arguments["reduction"] == "mean":
            func(torch.zeros(0), torch.zeros(0))  # it warns of its mean (torch 2.13)
        return arguments
    rest = {name: value for name, value in arguments.items() if name not in ("size_average", "reduce")}
    x, target = arguments["input"], arguments["target"]
    without_rows = [torch.zeros((0, *t.shape[1:]), dtype=t.dtype, device=t.device) for t in (x, target)]
    func(*without_rows, size_average=averages, reduce=reduces)
    is_none, is_mean = not (reduces is None or reduces), averages is None or averages  # 0 is as good as False
    return {**rest, "reduction": "none" if is_none else "mean" if is_mean else "sum"}


def _is_of_old(arguments: dict[str, Any]) -> bool:
    return arguments.get("size_average") is not None or arguments.get("reduce") is not None


_PAIR, _WEIGHTED = ("input", "target"), ("input", "target", "weight")
LOSSES: dict[Callable[..., Any], Rule] = {
    F.cross_entropy: class_loss,
    F.nll_loss: class_loss,
    F.mse_loss: elementwise_loss(_PAIR),  # a weighted mean divides by the weights: gathered
    F.l1_loss: elementwise_loss(_PAIR),
    F.smooth_l1_loss: elementwise_loss(_PAIR),
    F.huber_loss: elementwise_loss(_PAIR),
    F.kl_div: elementwise_loss(_PAIR),
    F.binary_cross_entropy: elementwise_loss(_WEIGHTED),
    F.binary_cross_entropy_with_logits: elementwise_loss((*_WEIGHTED, "pos_weight")),
    F.soft_margin_loss: elementwise_loss(_PAIR),
    F.poisson_nll_loss: elementwise_loss(_PAIR),
    **ROW_LOSSES,
}


def rules() -> list[tuple[Any, Rule]]:
    """Losses and their rules."""
    return [*LOSSES.items()]
