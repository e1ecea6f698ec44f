"""Samples that lie side by side as channels: ``conv2d(x.view(1, B * C, H, W), kernels, groups=B)``, a kernel for each.

StyleGAN 2 computes so (Karras et al. 2020, appendix B), and so do dynamic convolutions, Siamese trackers and AdaIN.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..forms import full_tensor, to_local
from ..layout import Layout
from ..names import as_int
from ..tensor import BatchTensor, Rule
from ..world import World
from .arguments import bound
from .networks import aligned, batch_norm, samples

_NAMES = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")


def convolution(dims: int, names: tuple[str, ...]) -> Rule:
    """Make the rule of ``conv{dims}d`` or its transpose, of samples in dimension 0, or as groups of channels."""
    of_samples = samples((dims + 2,))

    def rule(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        batch, weight, bias = given.get("input"), given.get("weight"), given.get("bias")
        if not isinstance(weight, BatchTensor) and not (isinstance(batch, BatchTensor) and batch._layout.dim == 1):
            return of_samples(func, args, kwargs)
        groups = as_int(given.get("groups", 1))
        if not (isinstance(batch, Tensor) and isinstance(weight, Tensor)) or batch.dim() != dims + 2:
            return NotImplemented
        local = _local_groups((batch, 1), (weight, 0), groups=groups) if type(groups) is int and groups > 0 else None
        if local is None:
            return NotImplemented
        layout = local.times(weight.shape[1] if names is _TRANSPOSED else weight.shape[0] // groups, 1)
        given |= {
            "input": aligned(batch, local.times(batch.shape[1] // groups, 1)),
            "weight": aligned(weight, local.times(weight.shape[0] // groups, 0)),
            "groups": local.counts[World.get().rank],
        }
        if bias is not None:
            given["bias"] = aligned(bias, layout.at(0))
            if given["bias"] is None:
                return NotImplemented
        return BatchTensor.from_local(func(**given), layout)

    return rule


def _local_groups(*operands: tuple[Tensor, int], groups: int) -> Layout | None:
    """Tell how groups of channels are dealt; None if one is of several ranks, or a rank has none.

    Args:
        operands: each with the dimension that the groups lie along. What every rank has whole takes part in any.
        groups: how many.
    """
    found: list[Layout | None] = []
    for operand, dim in operands:
        if operand.shape[dim] % groups:
            return None  # an error of torch's
        if isinstance(operand, BatchTensor):
            layout = operand._layout
            found.append(layout.divided(layout.total // groups, 0) if layout.dim == dim else None)
    first = found[0]
    if first is None or 0 in first.counts or any(other is None or not first.lies_as(other) for other in found):
        return None
    return first


def norm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``F.batch_norm`` of channels that are the samples', each with statistics of its own."""
    given = bound(func, args, kwargs)
    batch = given["input"]
    if not (isinstance(batch, BatchTensor) and batch._layout.dim == 1 and given["training"]):
        return batch_norm(func, args, kwargs)
    layout, kept = batch._layout.at(0), {}
    for name in ("running_mean", "running_var", "weight", "bias"):
        whole = given[name]
        if whole is None:
            continue
        given[name] = aligned(whole, layout)
        if given[name] is None:
            return NotImplemented
        if name.startswith("running"):
            if isinstance(whole, BatchTensor):
                return NotImplemented
            kept[name] = whole
            given[name] = given[name].clone()
    result = func(**{**given, "input": to_local(batch)})
    for name, whole in kept.items():  # which torch writes to
        whole.copy_(full_tensor(BatchTensor.from_local(given[name], layout)))
    return BatchTensor.from_local(result, batch._layout)


def rules() -> list[tuple[Any, Rule]]:
    """Layers that may be given samples as channels."""
    found: list[tuple[Any, Rule]] = [(F.batch_norm, norm)]
    for dims in (1, 2, 3):
        for owner in (torch, F):
            found.append((getattr(owner, f"conv{dims}d"), convolution(dims, _NAMES)))
            found.append((getattr(owner, f"conv_transpose{dims}d"), convolution(dims, _TRANSPOSED)))
    return found
