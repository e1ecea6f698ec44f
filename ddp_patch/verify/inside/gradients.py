"""Numbers of gradients and optimizers, as a record keeps them; and what has gradients, where no optimizer tells."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import Tensor

from ...batch.tensor import BatchTensor
from .variables import places


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


def with_gradients(known: Collection[int] = ()) -> list[Tensor]:
    """Find what a script trains by hand, in an order that is the same on all ranks, which may have to gather it.

    Args:
        known: identities of what need not be found.
    """
    gc.collect()  # what nobody holds any longer is found on one rank, and not on another
    tensors = list(_of(Tensor))
    batches = [each for each in tensors if type(each) is BatchTensor]
    forms = {id(form) for batch in batches for form in batch.forms}
    kinds = (Tensor, torch.nn.Parameter)
    found = [each for each in tensors if type(each) in kinds and id(each) not in forms and _is_trained(each)]
    found += [batch for batch in batches if any(map(_is_trained, batch.forms))]
    found = [each for each in found if id(each) not in known]
    shapes = Counter(tuple(each.shape) for each in found)
    order = places(each for each in found if shapes[tuple(each.shape)] > 1)
    return sorted(found, key=lambda each: (tuple(each.shape), order.get(id(each), len(order))))


def _is_trained(tensor: Tensor) -> bool:
    if getattr(tensor, "is_of_ddp_patch", False):  # what ranks tell each other with their gradients
        return False
    return tensor.requires_grad and tensor.is_leaf and tensor.grad is not None


def _of(wanted: type) -> Iterable[Any]:
    matches: dict[type, bool] = {}
    for candidate in gc.get_objects():
        kind = type(candidate)
        if kind not in matches:
            matches[kind] = issubclass(kind, wanted)
        if matches[kind]:
            yield candidate
