"""Parameters whose gradients are sparse, as the functions tell that give them such: a layer need not say so."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

_noted: Any = WeakIdKeyDictionary()  # no attributes: these would be saved with the tensor


def note_sparse(weight: Tensor) -> None:
    """Note that a backward is going to give a tensor a sparse gradient. Every rank comes here."""
    if weight.is_leaf and torch.is_grad_enabled():
        _noted[weight] = True


def noted_sparse() -> list[Tensor]:
    """Give those that were noted."""
    return list(_noted) if _noted.data else []  # torch 2.13: its length takes a step of Python more
