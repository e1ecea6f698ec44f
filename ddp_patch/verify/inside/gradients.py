"""Numbers of gradients and optimizers, as a record keeps them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def norms_of(grads: list[Tensor | None]) -> list[float | None]:
    """Measure gradients; those of one device are waited for once."""
    measured: dict[Any, list[tuple[int, Tensor]]] = {}
    for place, grad in enumerate(grads):
        if grad is not None:
            values = grad.detach().coalesce().values() if grad.is_sparse else grad.detach()
            values = values.abs() if values.is_complex() else values
            norm = torch.linalg.vector_norm(values, dtype=torch.float64)
            measured.setdefault(norm.device, []).append((place, norm))
    norms: list[float | None] = [None] * len(grads)
    for found in measured.values():
        for (place, _), value in zip(found, torch.stack([norm for _, norm in found]).tolist(), strict=True):
            norms[place] = value
    return norms


def number(value: Tensor) -> float:
    """Take the number out of a loss."""
    return float(value.real.double() if value.is_complex() else value.double())


def plain(group: dict[str, Any]) -> dict[str, Any]:
    """Give the options of a group of parameters that can be compared."""
    options = {name: value for name, value in group.items() if name != "params"}
    return {name: value for name, value in options.items() if isinstance(value, (int, float, bool, str, tuple, list))}
