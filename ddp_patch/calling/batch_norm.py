"""BatchNorm over the whole batch while each rank normalises its own rows.

On CUDA with the kernels of torch's SyncBatchNorm (``torch/nn/modules/_functions.py``), elsewhere with what every
device has, and Chan's formula for the ranks' moments. Both stand in for ``F.batch_norm``, through which every BatchNorm
module goes: no module is replaced, and subclasses keep their forward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..batch.crossings import all_reduce, replicate
from ..batch.one_row import in_order
from ..batch.versions import of_no_class
from ..batch.world import World


def over_all_rows(
    rows: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
) -> Tensor:
    """``F.batch_norm(training=True)`` on this rank's rows, with the whole batch's statistics."""
    if (plain := of_no_class(rows)) is not rows:
        return over_all_rows(plain, running_mean, running_var, weight, bias, momentum, eps).as_subclass(type(rows))
    if rows.is_cuda:
        return batch_norm_by_kernels(rows, weight, bias, running_mean, running_var, momentum, eps)
    return batch_norm(rows, running_mean, running_var, weight, bias, momentum, eps)


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

    One all-gather forward and one all-reduce backward. Running statistics are updated with the unbiased variance of the
    whole batch, as ``F.batch_norm`` does on one process.
    """
    rows = in_order(rows)
    # Half precision counts and squares in float, as torch's kernels do.
    mean, var, count = moments(rows.detach().float() if rows.dtype.itemsize < 4 else rows.detach())
    if running_mean is not None and running_var is not None:
        if rows.numel() // max(1, rows.shape[1]) < 2 and int(count) < 2:  # an accelerator would be waited for
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {rows.shape}")
        with torch.no_grad():
            # Through .data, as torch's kernel counts no version: another forward's backward may still need them.
            running_mean.data.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.data.lerp_((var * (count / (count - 1))).to(running_var.dtype), momentum)
    return _normalise(rows, weight, bias, mean, var, count, eps)


def moments(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and biased variance per channel over all ranks' rows, and how many values each channel has."""
    local_mean, local_var = _local_moments(rows)
    local_count = rows.numel() // max(1, rows.shape[1])
    table = World.get().all_gather(torch.cat([local_mean, local_var, local_mean.new_full((1,), local_count)]))
    counts = table[:, -1:]
    means, variances = table[:, :-1].chunk(2, dim=1)
    count = counts.sum()
    mean = (means * counts).sum(0) / count
    # Chan et al. 1979: the variance within ranks plus that between them, without cancellation.
    var = ((variances + (means - mean) ** 2) * counts).sum(0) / count
    return mean, var, count


def _local_moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    if rows.device.type == "cpu":  # the pass of torch's own BatchNorm; var_mean over these takes 3 to 30 times as long
        return torch.batch_norm_update_stats(rows, None, None, 0.0)
    var, mean = torch.var_mean(rows, [0, *range(2, rows.dim())], correction=0)
    return mean, var


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
        # Weights of half precision beside moments in float are refused (torch 2.13).
        scale, shift = (None if tensor is None else tensor.to(mean.dtype) for tensor in (weight, bias))
        return F.batch_norm(rows, mean, var, scale, shift, training=False, eps=eps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        rows, weight, bias, mean, var, count = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph: gradients of gradients need every step recorded
            return (*_recorded(grads[0], rows, weight, bias, ctx.eps), None, None, None, None)
        grad, cast_rows = in_order(grads[0]).to(mean.dtype), rows.to(mean.dtype)
        # As in evaluation, with statistics that are given: sums over this rank's rows of gradients alone, and of
        # gradients times normalised rows.
        _, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(
            grad, cast_rows, None, mean, var, None, None, False, ctx.eps, [False, True, True]
        )
        both = World.get().all_reduce(torch.stack([grad_bias, grad_weight])) / count
        scale = torch.rsqrt(var + ctx.eps)
        factor = scale if weight is None else scale * weight
        grad_rows = F.batch_norm(cast_rows, mean, var, -both[1], -both[0], training=False, eps=ctx.eps)
        grad_rows = grad_rows.add_(grad).mul_(factor.view([1, -1] + [1] * (rows.dim() - 2)))
        return (
            grad_rows.to(rows.dtype),
            None if weight is None else grad_weight.to(weight.dtype),
            None if bias is None else grad_bias.to(bias.dtype),
            None,
            None,
            None,
            None,
        )


_normalise: Callable[..., Tensor] = _Normalise.apply


class _ByKernels(torch.autograd.Function):
    """SyncBatchNorm, whose backward can be differentiated, and which looks for no empty rank: none is."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momentum: float,
        eps: float,
    ) -> Tensor:
        rows = _dense(rows)
        weight = None if weight is None else weight.contiguous()
        mean, invstd = torch.batch_norm_stats(rows, eps)
        local_count = mean.new_full((1,), rows.numel() // rows.shape[1])
        table = World.get().all_gather(torch.cat([mean, invstd, local_count]))
        means, invstds, counts = table.split([mean.numel(), mean.numel(), 1], dim=1)
        flat_counts = counts.reshape(-1).to(mean.dtype if running_mean is None else running_mean.dtype)
        mean, invstd = torch.batch_norm_gather_stats_with_counts(
            rows, means.contiguous(), invstds.contiguous(), running_mean, running_var, momentum, eps, flat_counts
        )
        ctx.save_for_backward(rows, weight, bias, mean, invstd, counts.to(torch.int32))
        ctx.eps = eps
        return torch.batch_norm_elemt(rows, weight, bias, mean, invstd, eps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        rows, weight, bias, mean, invstd, counts = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph: the kernels have no derivative
            return (*_recorded(grads[0], rows, weight, bias, ctx.eps), None, None, None, None)
        grad = _dense(grads[0])
        wanted = ctx.needs_input_grad[:3]
        sums, products, grad_weight, grad_bias = torch.batch_norm_backward_reduce(
            grad, rows, mean, invstd, weight, *wanted
        )
        grad_rows = None
        if wanted[0]:
            sums, products = World.get().all_reduce(torch.cat([sums, products])).chunk(2)
            scale = None if weight is None else weight.to(mean.dtype)
            grad_rows = torch.batch_norm_backward_elemt(grad, rows, mean, invstd, scale, sums, products, counts)
        return (
            grad_rows,
            grad_weight if weight is not None and wanted[1] else None,
            grad_bias if bias is not None and wanted[2] else None,
            *[None] * 4,
        )


batch_norm_by_kernels: Callable[..., Tensor] = _ByKernels.apply


def _dense(rows: Tensor) -> Tensor:
    is_last = rows.is_contiguous(memory_format=torch.channels_last) if rows.dim() == 4 else False
    is_last = is_last or (rows.dim() == 5 and rows.is_contiguous(memory_format=torch.channels_last_3d))
    return rows if is_last else rows.contiguous()


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
    count = World.get().all_reduce(rows.new_full((1,), rows.numel() // rows.shape[1]))
    mean = all_reduce(rows.sum(dims)) / count
    centred = rows - replicate(mean).view(shape)
    var = all_reduce((centred**2).sum(dims)) / count
    out = centred * torch.rsqrt(replicate(var) + eps).view(shape)
    out = out if weight is None else out * weight.view(shape)
    return out if bias is None else out + bias.view(shape)
