"""torch.nn.functional.batch_norm: the whole batch's statistics while a model computes rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..batch.crossings import replicate
from ..batch.forms import to_local
from ..batch.one_row import normed
from ..batch.tensor import BatchTensor
from ..batch.transforms import is_transformed
from ..calling.batch_norm import over_all_rows
from ..patch import Args, Kwargs, Patch
from ..session import Session
from .below_modes import below_modes


def _batch_norm(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Tensor:
    def bind(
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training or (isinstance(input, BatchTensor) and is_transformed()):
            as_given = normed(unchanged) if session.replicas.forwards.computes_rows else unchanged
            return as_given(input, running_mean, running_var, weight, bias, training, momentum, eps)
        if isinstance(input, BatchTensor) and input._layout.dim == 0 and input.dim() > 1:
            weight, bias = (None if value is None else replicate(value) for value in (weight, bias))
            seen = session.world.observation
            with contextlib.nullcontext() if seen is None else seen.paused():  # rows have it the same way
                rows = on_rows(to_local(input), running_mean, running_var, weight, bias, momentum, eps)
            return BatchTensor.from_local(rows, input._layout)
        if session.world.observation is not None:
            why = "BatchNorm gets a tensor that is not of the batch, so that its rows are not those of all ranks"
            session.world.observation.forbid_split(why, "Normalize it in the script", at_line=True)
        if session.replicas.forwards.computes_rows:
            return on_rows(input, running_mean, running_var, weight, bias, momentum, eps)
        return unchanged(input, running_mean, running_var, weight, bias, True, momentum, eps)

    def on_rows(rows: Tensor, mean: Any, var: Any, weight: Any, bias: Any, momentum: float, eps: float) -> Tensor:
        if session.options.sync_batchnorm:
            return over_all_rows(rows, mean, var, weight, bias, momentum, eps)
        return normed(unchanged)(rows, mean, var, weight, bias, True, momentum, eps)

    unchanged: Callable[..., Tensor] = wrapped
    return bind(*args, **kwargs)


_EFFECT = "sees the rows of all ranks while a model computes its own"

PATCHES = (Patch("torch.nn.functional", "batch_norm", below_modes(_batch_norm), _EFFECT),)
