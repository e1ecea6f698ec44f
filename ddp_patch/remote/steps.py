"""How schedulers know that their optimizer has stepped: torch's mark on it, which pickling leaves behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


def marked(tracked: Sequence[Any]) -> dict[int, bool]:
    """Tell which optimizers have a scheduler, by their numbers, and whether they have stepped since."""
    return {
        number: has_stepped(each)
        for number, each in enumerate(tracked)
        if isinstance(each, Optimizer) and "step" in vars(each)
    }


def mark(tracked: Sequence[Any], its: Mapping[int, bool]) -> None:
    """Mark them so."""
    for number, stepped in its.items():
        without = [group for group in tracked[number].param_groups if "initial_lr" not in group]
        _Marks(tracked[number])
        for group in without:
            del group["initial_lr"]
        if stepped:
            remember(tracked[number])


def has_stepped(optimizer: Optimizer) -> bool:
    """Tell whether one that has a scheduler has stepped."""
    return getattr(optimizer, "_opt_called", False)


def remember(optimizer: Optimizer) -> None:
    """Have it so."""
    optimizer._opt_called = True  # type: ignore[attr-defined]


class _Marks(LRScheduler):
    """Does to its optimizer what making a scheduler does, and leaves the rates."""

    def step(self, epoch: int | None = None) -> None:
        """Leave them."""
