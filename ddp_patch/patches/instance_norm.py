"""torch.nn.functional.instance_norm: running statistics of the whole batch. What it gives keeps rows apart anyway."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..batch.crossings import replicate
from ..batch.forms import to_local
from ..batch.one_row import normed
from ..batch.tensor import BatchTensor
from ..patch import Args, Kwargs, Patch
from ..session import Session
from .below_modes import below_modes


def _instance_norm(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Tensor:
    def bind(
        input: Tensor,
        running_mean: Tensor | None = None,
        running_var: Tensor | None = None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        use_input_stats: bool = True,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        how = use_input_stats, momentum, eps
        if use_input_stats and running_mean is not None and running_var is not None:
            if isinstance(input, BatchTensor) and input._layout.dim == 0:
                weight, bias = (None if value is None else replicate(value) for value in (weight, bias))
                seen = session.world.observation
                with contextlib.nullcontext() if seen is None else seen.paused():  # rows have it the same way
                    rows = on_rows(to_local(input), running_mean, running_var, weight, bias, *how)
                return BatchTensor.from_local(rows, input._layout)
            if session.replicas.forwards.computes_rows:
                return on_rows(input, running_mean, running_var, weight, bias, *how)
        as_given = normed(unchanged) if session.replicas.forwards.computes_rows else unchanged
        return as_given(input, running_mean, running_var, weight, bias, *how)

    def on_rows(rows: Tensor, mean: Tensor, var: Tensor, weight: Any, bias: Any, *how: Any) -> Tensor:
        # torch's update is the mean over the samples (aten/src/ATen/native/Normalization.cpp, instance_norm).
        local_mean, local_var = mean.clone(), var.clone()
        result = normed(unchanged)(rows, local_mean, local_var, weight, bias, *how)
        with torch.no_grad():
            count = len(rows)
            whole = session.world.all_reduce(
                torch.cat([local_mean * count, local_var * count, mean.new_full((1,), count)])
            )
            means = (whole[:-1] / whole[-1]).chunk(2)
            mean.copy_(means[0])
            var.copy_(means[1])
        return result

    unchanged: Callable[..., Tensor] = wrapped
    return bind(*args, **kwargs)


PATCHES = (Patch("torch.nn.functional", "instance_norm", below_modes(_instance_norm), "tracks the rows of all ranks"),)
