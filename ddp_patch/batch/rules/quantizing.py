"""Fake quantization: the scale comes of the extremes of all rows, by which each row is rounded (Jacob et al. 2018).

``torch.ao.quantization`` observes activations so in quantization-aware training.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..forms import full_tensor_if_gathered, to_local
from ..tensor import BatchTensor, Rule
from ..world import World
from .dims import along
from .networks import on_rows
from .reductions import of_ranks

_OBSERVES, _CHANNELS = 1, 11  # where ``observer_on`` and ``per_row_fake_quant`` stand among the arguments
_along = along("aminmax", 1, None)


def extremes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.aminmax(x)``: of all entries, those of the ranks' extremes. One all_reduce."""
    batch = args[0] if len(args) == 1 and kwargs.get("dim") is None else None
    if not isinstance(batch, BatchTensor) or batch.requires_grad or full_tensor_if_gathered(batch) is not None:
        return _along(func, args, kwargs)
    pair = _extremes(batch)
    return NotImplemented if pair is None else func(pair.view([1] * (batch.dim() - 1) + [2]), **kwargs)


def observed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.fused_moving_avg_obs_fake_quant``: observes the extremes of the whole, then rounds rows."""
    batch, rest = args[0], args[1:]
    is_of_channels = kwargs.get("per_row_fake_quant", len(args) > _CHANNELS and args[_CHANNELS])
    if not isinstance(batch, BatchTensor) or is_of_channels or len(args) <= _OBSERVES:
        return NotImplemented
    if any(isinstance(value, BatchTensor) for value in (*rest, *kwargs.values())):
        return NotImplemented
    observer_on, *others = rest
    if (seen := World.get().observation) is not None:
        seen.forbid_split("its forward observes extremes in a kernel, by flags that change later")
    if not observer_on.is_cpu or observer_on:  # a device is not waited for
        pair = _extremes(batch)
        if pair is None:
            return NotImplemented
        with torch.no_grad():
            func(pair, observer_on, *others, **kwargs)  # which sets the scale
    rows = func(to_local(batch), torch.zeros_like(observer_on), *others, **kwargs)
    return BatchTensor.from_local(rows, batch._layout)


def _extremes(batch: BatchTensor) -> Tensor | None:
    rows = to_local(batch).detach()
    if min(batch._layout.counts) == 0 or rows.numel() == 0 or rows.is_complex() or World.get().skips_collectives:
        return None
    each = of_ranks(torch.stack(torch.aminmax(rows)))
    return torch.stack([each[:, 0].min(), each[:, 1].max()])


def rounded(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.fake_quantize_per_tensor_affine``: each entry for itself, by a scale that is known."""
    return on_rows(func, args[0], args, kwargs) if args and isinstance(args[0], BatchTensor) else NotImplemented


def rounded_by_channel(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.fake_quantize_per_channel_affine``: likewise, with a scale for each index of another dimension."""
    axis = args[3] if len(args) > 3 else kwargs.get("axis")
    if not args or not isinstance(args[0], BatchTensor) or type(axis) is not int:
        return NotImplemented
    return NotImplemented if axis % args[0].dim() == args[0]._layout.dim else on_rows(func, args[0], args, kwargs)


def rules() -> list[tuple[Any, Rule]]:
    """Functions of quantization-aware training."""
    return [
        (torch.aminmax, extremes),
        (Tensor.aminmax, extremes),
        (torch.fused_moving_avg_obs_fake_quant, observed),
        (torch.fake_quantize_per_tensor_affine, rounded),
        (torch.fake_quantize_per_channel_affine, rounded_by_channel),
    ]
