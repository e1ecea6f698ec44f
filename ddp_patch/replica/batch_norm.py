"""BatchNorm over the whole batch while each rank normalises its own rows.

On CUDA this is torch's SyncBatchNorm, run on the very module object. torch's refuses CPU tensors, so there is one of
our own, which follows ``torch/nn/modules/_functions.py`` and combines the ranks' moments with Chan's formula.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..batch.crossings import spread, total
from ..batch.world import World
from . import swap


def synchronise(module: nn.Module, on_rows: Callable[[], bool]) -> int:
    """Let every BatchNorm in a module see the whole batch while ``on_rows()``; the objects stay the same.

    Returns:
        the number of layers changed.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, _BatchNorm) and _is_plain(layer)]
    for layer in layers:
        swap.swap(layer, {"forward": _forward_of(type(layer), on_rows)})
    return len(layers)


def release(module: nn.Module) -> None:
    """Give every BatchNorm its class back."""
    for layer in module.modules():
        if isinstance(layer, _BatchNorm):
            swap.restore(layer)


def _is_plain(layer: nn.Module) -> bool:
    return not isinstance(layer, nn.SyncBatchNorm) and "_ddp_patch_original" not in vars(type(layer))


def _forward_of(original: type[nn.Module], on_rows: Callable[[], bool]) -> Callable[..., Tensor]:
    def forward(self: Any, input: Tensor) -> Tensor:
        uses_batch = self.training or (self.running_mean is None and self.running_var is None)
        if not (uses_batch and on_rows()):
            return original.forward(self, input)  # type: ignore[no-any-return]
        self._check_input_dim(input)
        momentum = _advance(self)
        if input.is_cuda:
            return _on_cuda(self, input, momentum)
        return batch_norm(
            input,
            self.running_mean if self.training else None,
            self.running_var if self.training else None,
            self.weight,
            self.bias,
            momentum,
            self.eps,
        )

    return forward


def _advance(layer: Any) -> float:
    """Count the batch and give the weight of its statistics, as ``_BatchNorm.forward`` does."""
    if layer.training and layer.track_running_stats and layer.num_batches_tracked is not None:
        layer.num_batches_tracked.add_(1)
        if layer.momentum is None:  # cumulative average
            return 1.0 / float(layer.num_batches_tracked)
    return 0.0 if layer.momentum is None else float(layer.momentum)


def _on_cuda(layer: Any, input: Tensor, momentum: float) -> Tensor:
    from torch.nn.modules._functions import SyncBatchNorm  # noqa: PLC0415 — only where there is CUDA

    world = World.get()
    weight = layer.weight if layer.weight is not None else input.new_ones(input.shape[1])
    bias = layer.bias if layer.bias is not None else input.new_zeros(input.shape[1])
    mean, var = (layer.running_mean, layer.running_var) if layer.training else (None, None)
    apply: Callable[..., Tensor] = SyncBatchNorm.apply
    return apply(input, weight, bias, mean, var, layer.eps, momentum, world.group, world.size)


def batch_norm(
    rows: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
) -> Tensor:
    """Normalise rows ``[b, C, *]`` with the moments of all ranks' rows.

    One all-reduce forward and one backward. Running statistics are updated with the unbiased variance of the whole
    batch, as ``F.batch_norm`` does on one process.
    """
    mean, var, count = moments(rows.detach())
    if running_mean is not None and running_var is not None:
        if int(count) < 2:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {rows.shape}")
        with torch.no_grad():
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_((var * (count / (count - 1))).to(running_var.dtype), momentum)
    return _normalise(rows, weight, bias, mean, var, count, eps)


def moments(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and biased variance per channel over all ranks' rows, and how many values each channel has."""
    dims = [0, *range(2, rows.dim())]
    own_var, own_mean = torch.var_mean(rows, dims, correction=0)
    own_count = rows.numel() // max(1, rows.shape[1])
    world = World.get()
    # One sum collects every rank's moments in a row of its own: a gather in one small all-reduce.
    table = own_mean.new_zeros(world.size, 2 * own_mean.numel() + 1)
    table[world.rank] = torch.cat([own_mean, own_var, own_mean.new_tensor([own_count])])
    table = world.all_reduce(table)
    counts = table[:, -1:]
    means, variances = table[:, :-1].chunk(2, dim=1)
    count = counts.sum()
    mean = (means * counts).sum(0) / count
    # Chan et al. 1979: the variance within ranks plus that between them, without cancellation.
    var = ((variances + (means - mean) ** 2) * counts).sum(0) / count
    return mean, var, count


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        var: Tensor,
        count: Tensor,
        eps: float,
    ) -> Tensor:
        ctx.save_for_backward(rows, weight, bias, mean, var, count)
        ctx.eps = eps
        return F.batch_norm(rows, mean, var, weight, bias, training=False, eps=eps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        rows, weight, bias, mean, var, count = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph: gradients of gradients need every step recorded
            return (*_recorded(grads[0], rows, weight, bias, ctx.eps), None, None, None, None)
        shape = [1, -1] + [1] * (rows.dim() - 2)
        dims = [0, *range(2, rows.dim())]
        scale = torch.rsqrt(var + ctx.eps)
        centred = (rows - mean.view(shape)) * scale.view(shape)
        grad_bias = grads[0].sum(dims)
        grad_weight = (grads[0] * centred).sum(dims)
        both = World.get().all_reduce(torch.stack([grad_bias, grad_weight])) / count
        factor = scale if weight is None else scale * weight
        grad_rows = (grads[0] - both[0].view(shape) - centred * both[1].view(shape)) * factor.view(shape)
        return (
            grad_rows,
            None if weight is None else grad_weight,
            None if bias is None else grad_bias,
            None,
            None,
            None,
            None,
        )


_normalise: Callable[..., Tensor] = _Normalise.apply


def _recorded(grad: Tensor, rows: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> list[Any]:
    """Differentiable gradients of ``composite`` for rows, weight and bias."""
    inputs = [rows, weight, bias]
    with torch.enable_grad():
        out = composite(rows, weight, bias, eps)
    wanted = [tensor for tensor in inputs if tensor is not None and tensor.requires_grad]
    found = iter(torch.autograd.grad(out, wanted, grad, create_graph=True))
    return [next(found) if tensor is not None and tensor.requires_grad else None for tensor in inputs]


def composite(rows: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """The same normalisation out of differentiable steps: slower, and differentiable as often as wanted."""
    shape = [1, -1] + [1] * (rows.dim() - 2)
    dims = [0, *range(2, rows.dim())]
    count = World.get().all_reduce(rows.new_tensor([rows.numel() // rows.shape[1]]))
    mean = total(rows.sum(dims)) / count
    centred = rows - spread(mean).view(shape)
    var = total((centred**2).sum(dims)) / count
    out = centred * torch.rsqrt(spread(var) + eps).view(shape)
    out = out if weight is None else out * weight.view(shape)
    return out if bias is None else out + bias.view(shape)
