"""Learning rates for a batch that grows with the ranks, applied while an optimizer steps.

A step of an optimizer takes the script's learning rate times a factor; before and after it, the script and its
schedulers find the rate that they set. So schedulers may be made before or after, and a checkpoint holds the script's
rates, which fit any number of ranks; how far the warmup came is kept beside them, in the optimizer's groups.

Goyal et al. 2017 (https://arxiv.org/abs/1706.02677): linear scaling, gradual warmup. Krizhevsky 2014
(https://arxiv.org/abs/1404.5997): the root. Malladi et al. 2022 (https://arxiv.org/abs/2205.10287): the root for Adam
and RMSprop.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

from .errors import OptionError
from .ledger import Ledger
from .option_forms import warmup_of
from .options import Options

DONE = "ddp_patch_warmup"  # part of the warmup that is done, in each group of an optimizer's
_ADAPTIVE = ("adam", "rmsprop", "adagrad", "adadelta", "adafactor")


class Rates:
    """Scales the learning rates of steps."""

    def __init__(self, options: Options, size: int, ledger: Ledger, epochs: Callable[[], float | None]) -> None:
        """Scale nothing yet.

        Args:
            options: of the session.
            size: the number of ranks.
            ledger: of the session.
            epochs: gives how many epochs of the loader in use are done, with the part of the present one; None where
                that has no length.
        """
        self.are_scaled = options.lr_scale is not None
        self._rule = options.lr_scale
        self._size = size
        self._ledger = ledger
        self._epochs = epochs
        self._length, self._unit = warmup_of(options.warmup)
        self._seen: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()  # epochs at its last step
        self._own: weakref.WeakKeyDictionary[Any, list[tuple[dict[str, Any], Any, Any]]] = weakref.WeakKeyDictionary()

    def factor(self, optimizer: Any) -> float:
        """Give what an optimizer's learning rates are multiplied by after the warmup."""
        if isinstance(self._rule, (int, float)):
            return float(self._rule)
        return math.sqrt(self._size) if self._rule == "sqrt" or is_adaptive(optimizer) else float(self._size)

    def before(self, optimizer: Any) -> None:
        """An optimizer is about to step."""
        self.after(optimizer)  # an earlier step raised
        factor = self.factor(optimizer)
        self._say(optimizer, factor)
        own = self._own[optimizer] = []
        for group in optimizer.param_groups:
            scaled = group["lr"] * (1 + (factor - 1) * self._done(group))
            own.append((group, group["lr"], scaled))
            group["lr"] = scaled

    def after(self, optimizer: Any) -> None:
        """It has stepped."""
        own = self._own.pop(optimizer, [])
        for group, rate, scaled in own:
            if group["lr"] is scaled:
                group["lr"] = rate
        if own and self._length:
            step = self._step(optimizer)
            for group, _, _ in own:
                group[DONE] = min(1.0, group.get(DONE, 0.0) + step)

    def _done(self, group: dict[str, Any]) -> float:
        return float(group.setdefault(DONE, 0.0)) if self._length else 1.0

    def _step(self, optimizer: Any) -> float:
        """What part of the warmup the last step was."""
        if self._unit == "steps":
            return 1 / self._length
        now = self._epochs()
        if now is None:
            raise OptionError(
                f"warmup='{self._length:g} epochs' needs a loader with a length, to know when an epoch is over. "
                "Write a number of steps, as warmup=500."
            )
        # A loader that is made anew for each epoch begins anew.
        seen, self._seen[optimizer] = self._seen.get(optimizer, 0.0), now
        return (now - seen if now >= seen else now) / self._length

    def _say(self, optimizer: Any, factor: float) -> None:
        rule = "the root of " if factor == math.sqrt(self._size) and not isinstance(self._rule, (int, float)) else ""
        why = "as lr_scale says" if isinstance(self._rule, (int, float)) else f"{rule}{self._size} ranks"
        warmup = f", reached after {self._length:g} {self._unit}" if self._length else ""
        self._ledger.note(f"learning rates of {type(optimizer).__name__} count {factor:.4g} times ({why}){warmup}")


def is_adaptive(optimizer: Any) -> bool:
    """Tell Adam's kind, which divides gradients by their size, by its names."""
    return any(word in kind.__name__.lower() for kind in type(optimizer).__mro__ for word in _ADAPTIVE)
