"""torch.nn.functional.batch_norm: the whole batch's statistics while a model computes rows."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..patcher import Patch
from ..replica.batch_norm import over_all_rows
from ..replica.replicas import Replicas


def patches(replicas: Replicas) -> list[Patch]:
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
            if not (training and replicas.on_rows):
                out: Tensor = wrapped(input, running_mean, running_var, weight, bias, training, momentum, eps)
                return out
            return over_all_rows(input, running_mean, running_var, weight, bias, momentum, eps)

        return bind(*args, **kwargs)

    return [Patch("torch.nn.functional", "batch_norm", batch_norm, "sees the rows of all ranks")]
