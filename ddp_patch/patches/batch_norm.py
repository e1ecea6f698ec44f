"""torch.nn.functional.batch_norm: the whole batch's statistics while a model computes rows."""

from __future__ import annotations

import contextlib
from typing import Any

from torch import Tensor

from ..batch.crossings import spread
from ..batch.tensor import BatchTensor, rows_of
from ..batch.world import World
from ..patcher import Patch
from ..replica.batch_norm import over_all_rows
from ..replica.replicas import Replicas


def patches(replicas: Replicas, world: World) -> list[Patch]:
    """Rows for ``F.batch_norm``."""

    def batch_norm(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
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
            if training and isinstance(input, BatchTensor) and input._layout.dim == 0 and input.dim() > 1:
                return on_batch(input, running_mean, running_var, weight, bias, momentum, eps)
            if not (training and replicas.on_rows):
                out: Tensor = wrapped(input, running_mean, running_var, weight, bias, training, momentum, eps)
                return out
            return over_all_rows(input, running_mean, running_var, weight, bias, momentum, eps)

        return bind(*args, **kwargs)

    def on_batch(
        batch: BatchTensor,
        mean: Tensor | None,
        var: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        momentum: float,
        eps: float,
    ) -> Tensor:
        weight, bias = (None if value is None else spread(value) for value in (weight, bias))
        seen = world.observation
        with contextlib.nullcontext() if seen is None else seen.paused():  # this is how rows have it as well
            rows = over_all_rows(rows_of(batch), mean, var, weight, bias, momentum, eps)
        return BatchTensor.from_rows(rows, batch._layout)

    return [Patch("torch.nn.functional", "batch_norm", batch_norm, "sees the rows of all ranks")]
