"""Layers that treat every sample by itself: the rows meet the same weights, which a gradient sums over all rows."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..crossings import replicate, shard
from ..forms import to_local
from ..layout import Layout
from ..one_row import normed
from ..sparse import note_sparse
from ..tensor import BatchTensor, Rule
from ..world import World
from .arguments import bound
from .dims import wrap


def on_rows(func: Any, batch: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a layer on the rows of ``batch``; every other tensor among the arguments is a weight that all rows meet."""
    values = (*args, *kwargs.values())
    if kwargs.get("out") is not None or sum(isinstance(value, BatchTensor) for value in values) != 1:
        return NotImplemented

    def localized(value: Any) -> Any:
        if value is batch:
            return to_local(batch)
        return replicate(value) if isinstance(value, Tensor) else value

    result = func(*map(localized, args), **{name: localized(value) for name, value in kwargs.items()})
    return wrap(result, lambda rows: BatchTensor.from_local(rows, batch._layout))


def aligned(operand: Any, layout: Layout) -> Tensor | None:
    """Give this rank's rows of an operand that has one row per sample; None where that is not what it has."""
    if isinstance(operand, BatchTensor):
        return to_local(operand) if operand._layout == layout else None
    if operand.dim() <= layout.dim or operand.shape[layout.dim] != layout.total:
        return None
    return shard(operand, layout)


def samples(dims: Collection[int]) -> Rule:
    """Make the rule of ``conv2d``, ``max_pool2d``, ...: samples in dimension 0 of an input with ``dims`` dimensions."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        batch = args[0] if args else kwargs.get("input")
        if not isinstance(batch, BatchTensor) or batch._layout.dim != 0 or batch.dim() not in dims:
            return NotImplemented  # without a sample dimension, the batch would be the channels
        return on_rows(func, batch, args, kwargs)

    return rule


def last_dims(mixed: int) -> Rule:
    """Make the rule of ``linear``, ``pixel_shuffle``, ...: the last ``mixed`` dimensions are computed together."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        batch = args[0] if args else kwargs.get("input")
        if not isinstance(batch, BatchTensor) or batch._layout.dim >= batch.dim() - mixed:
            return NotImplemented
        return on_rows(func, batch, args, kwargs)

    return rule


def paired(dims: Collection[int]) -> Rule:
    """Make the rule of ``grid_sample`` and ``max_unpool2d``: the first two arguments have a row per sample."""

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        batch = next((value for value in args[:2] if isinstance(value, BatchTensor)), None)
        if batch is None or batch._layout.dim != 0 or len(args) < 2 or args[0].dim() not in dims:
            return NotImplemented
        if any(isinstance(value, Tensor) for value in (*args[2:], *kwargs.values())):
            return NotImplemented
        pair = [aligned(value, batch._layout) for value in args[:2]]
        if pair[0] is None or pair[1] is None:
            return NotImplemented
        return BatchTensor.from_local(func(*pair, *args[2:], **kwargs), batch._layout)

    return rule


def layer_norm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``F.layer_norm(x, shape)`` and ``rms_norm`` normalise the last dimensions."""
    shape = args[1] if len(args) > 1 else kwargs.get("normalized_shape")
    return last_dims(len(shape))(func, args, kwargs) if isinstance(shape, (list, tuple)) else NotImplemented


def group_norm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``F.group_norm(x, groups)`` normalises within a sample."""
    if len(args) < 2 or args[0].dim() < 2 or math.prod(args[0].shape[1:]) <= args[1]:
        return NotImplemented  # torch refuses groups of one value if there is one sample, as a rank may have
    return samples(range(2, 6))(func, args, kwargs)


def instance_norm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``F.instance_norm(x)``; statistics kept over the batches would mix the samples."""
    arguments = bound(func, args, kwargs)
    if arguments["use_input_stats"] and (arguments["running_mean"] is not None or arguments["running_var"] is not None):
        return NotImplemented
    return samples((3, 4, 5))(normed(func), args, kwargs)


def batch_norm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``F.batch_norm`` with the kept statistics; in training it mixes the samples."""
    arguments = bound(func, args, kwargs)
    if arguments["training"] or not isinstance(arguments["input"], BatchTensor):
        return NotImplemented
    if arguments["input"]._layout.dim == 1 or arguments["running_mean"] is None or arguments["running_var"] is None:
        return NotImplemented
    return on_rows(normed(func), arguments["input"], args, kwargs)


def prelu(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``F.prelu(x, weight)`` with one weight, or one for each index of dimension 1."""
    if len(args) != 2 or not isinstance(args[0], BatchTensor) or (args[0]._layout.dim == 1 and args[1].numel() != 1):
        return NotImplemented
    return on_rows(func, args[0], args, kwargs)


def embedding(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``F.embedding(indices, weight)``. Counts of the indices and renormed weights see all rows."""
    arguments = bound(func, args, kwargs)
    if _is_sparse_elsewhere(arguments) or arguments["max_norm"] is not None or arguments["scale_grad_by_freq"]:
        return NotImplemented
    return (
        on_rows(func, arguments["input"], args, kwargs)
        if isinstance(arguments["input"], BatchTensor)
        else NotImplemented
    )


def _is_sparse_elsewhere(arguments: dict[str, Any]) -> bool:
    """Tell sparse gradients that nobody averages: of what is no parameter of a replica."""
    weight = arguments["weight"]
    if not (arguments["sparse"] and weight.requires_grad):
        return False
    note_sparse(weight)
    return not World.get().has_averaged_gradient(weight)


def embedding_bag(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``F.embedding_bag(indices, weight)`` with a bag in each row; offsets cut bags across rows."""
    arguments = bound(func, args, kwargs)
    if _is_sparse_elsewhere(arguments) or arguments["max_norm"] is not None or arguments["scale_grad_by_freq"]:
        return NotImplemented
    batch, weight, per_sample = arguments["input"], arguments["weight"], arguments["per_sample_weights"]
    if not isinstance(batch, BatchTensor) or isinstance(weight, BatchTensor) or arguments["offsets"] is not None:
        return NotImplemented
    if batch.dim() != 2 or batch._layout.dim != 0 or (per_sample is not None and per_sample.shape != batch.shape):
        return NotImplemented
    aligned_weights = None if per_sample is None else aligned(per_sample, batch._layout)
    if aligned_weights is None and per_sample is not None:
        return NotImplemented
    local = {**arguments, "input": to_local(batch), "weight": replicate(weight), "per_sample_weights": aligned_weights}
    return BatchTensor.from_local(func(**local), batch._layout)


def pad(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``F.pad(x, widths)`` of other dimensions than the batch's."""
    arguments = bound(func, args, kwargs)
    if not isinstance(arguments["input"], BatchTensor):
        return NotImplemented
    batch, widths = arguments["input"], arguments["pad"]
    back = batch.dim() - 1 - batch._layout.dim  # widths begin with the last dimension
    if not isinstance(widths, (list, tuple)) or any(widths[2 * back : 2 * back + 2]):
        return NotImplemented
    return on_rows(func, batch, args, kwargs)


def affine_grid(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``F.affine_grid(theta, x.size())``: a grid for each sample."""
    arguments = bound(func, args, kwargs)
    if not isinstance(arguments["theta"], BatchTensor):
        return NotImplemented
    theta, size = arguments["theta"], arguments["size"]
    if theta._layout.dim != 0 or theta.dim() != 3 or len(size) not in (4, 5) or size[0] != theta.shape[0]:
        return NotImplemented
    rows = to_local(theta)
    local = {**arguments, "theta": rows, "size": [rows.shape[0], *size[1:]]}
    return BatchTensor.from_local(func(**local), theta._layout)


def unfold(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.unfold(2, size, step)``: windows along another dimension than the batch's."""
    if len(args) != 4 or type(args[1]) is not int or not -args[0].dim() <= args[1] < args[0].dim():
        return NotImplemented
    if not isinstance(args[0], BatchTensor) or args[1] % args[0].dim() == args[0]._layout.dim:
        return NotImplemented
    return on_rows(func, args[0], args, kwargs)


def rules() -> list[tuple[Any, Rule]]:
    """Layers whose arguments decide, or whose names mean something else elsewhere in torch."""
    return [
        *((func, layer_norm) for func in (F.layer_norm, torch.layer_norm, F.rms_norm, torch.rms_norm)),
        *((func, group_norm) for func in (F.group_norm, torch.group_norm)),
        *((func, prelu) for func in (torch.prelu, Tensor.prelu)),
        *((func, paired((4, 5))) for func in (F.grid_sample, torch.grid_sampler)),
        (F.max_unpool1d, paired((3,))),
        (F.max_unpool2d, paired((4,))),
        (F.max_unpool3d, paired((5,))),
        (F.instance_norm, instance_norm),
        (F.batch_norm, batch_norm),
        (F.embedding, embedding),
        (F.embedding_bag, embedding_bag),
        (F.pad, pad),
        (F.affine_grid, affine_grid),
        (F.unfold, samples((4,))),
        (F.fold, samples((3,))),
        (Tensor.unfold, unfold),
    ]
