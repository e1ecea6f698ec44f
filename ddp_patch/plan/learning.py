"""The learning rate for another batch size, and up to which one it pays.

- linear in the batch, with a warm-up over 5 epochs, for SGD: Goyal et al. 2017 (arXiv 1706.02677), who kept the
  accuracy of ResNet-50 on ImageNet up to 8,192 pictures
- square root: Krizhevsky 2014 (arXiv 1404.5997) from the variance of gradients, who then found linear to work better;
  Malladi et al. 2022 (arXiv 2205.10287) for Adam and RMSprop
- the critical batch size, beyond which more rows save few steps: McCandlish et al. 2018 (arXiv 1812.06162)
"""

from __future__ import annotations

import math

_SGD = ("sgd", "momentum")


def rule(optimizer: str) -> str:
    """Name the rule for an optimizer: ``linear`` for SGD, ``square root`` for those that divide by gradients' size."""
    return "linear" if optimizer in _SGD else "square root"


def factor(optimizer: str, times: float) -> float:
    """Give by what the learning rate is multiplied where the batch has ``times`` as many rows."""
    return times if rule(optimizer) == "linear" else math.sqrt(times)


def steps_needed(batch: float, critical: float) -> float:
    """Give the steps to the same loss, relative to the fewest that any batch needs: 1 + critical / batch.

    McCandlish et al., equation 2.11: (S/S_min - 1)(E/E_min - 1) = 1, with critical = E_min/S_min and E = S * batch.

    Args:
        batch: rows of a step.
        critical: critical batch size, in rows.
    """
    return 1 + critical / batch


def rows_needed(batch: float, critical: float) -> float:
    """Give the rows to the same loss, relative to the fewest that any batch needs: 1 + batch / critical."""
    return 1 + batch / critical
