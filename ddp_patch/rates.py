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
from collections.abc import Sequence
from typing import Any

from .errors import OptionError
from .ledger import Ledger
from .option_forms import warmup_of
from .options import Options

DONE = "ddp_patch_warmup"  # part of the warmup that is done, in each group of an optimizer's
_ADAPTIVE = ("adam", "rmsprop", "adagrad", "adadelta", "adafactor", "lamb")


class Rates:
    """Scales the learning rates of steps."""

    def __init__(self, options: Options, size: int, ledger: Ledger) -> None:
        """Scale nothing yet.

        Args:
            options: of the session.
            size: the number of ranks.
            ledger: of the session.
        """
        self.are_scaled = options.lr_scale is not None
        self._rule = options.lr_scale
        self._size = size
        self._ledger = ledger
        self._length, self._unit = warmup_of(options.warmup)
        # How many epochs of each loader were done at its last step with that, or when it was made.
        self._seen: weakref.WeakKeyDictionary[Any, dict[str, float]] = weakref.WeakKeyDictionary()
        self._own: weakref.WeakKeyDictionary[Any, list[tuple[dict[str, Any], Any, Any]]] = weakref.WeakKeyDictionary()

    def factor(self, optimizer: Any) -> float:
        """Give what an optimizer's learning rates are multiplied by after the warmup."""
        if isinstance(self._rule, (int, float)):
            return float(self._rule)
        return math.sqrt(self._size) if self._rule == "sqrt" or is_adaptive(optimizer) else float(self._size)

    def meets(self, optimizer: Any) -> None:
        """An optimizer was made: its warmup begins where the loader in use is."""
        self._seen.setdefault(optimizer, {self._ledger.loader: self._ledger.epochs or 0.0})

    def before(self, optimizer: Any, around: Sequence[Any] = ()) -> None:
        """An optimizer is about to step.

        Args:
            optimizer: that does.
            around: whose steps it is inside of. What they train is scaled already: an optimizer that wraps another
                shares its groups, or hands its rates on (``ZeroRedundancyOptimizer``).

        Raises:
            OptionError: when it has no learning rate to scale.
        """
        if any(optimizer is other for other in around):
            return
        self.after(optimizer)  # an earlier step raised
        groups = [group for other in around for group, _, _ in self._own.get(other, [])]
        scaled_already = {id(parameter) for group in groups for parameter in group["params"]}
        own: list[tuple[dict[str, Any], Any, Any]] = []
        for group in optimizer.param_groups:
            if not scaled_already.isdisjoint(map(id, group["params"])):
                continue
            rate = group.get("lr")
            if rate is None:
                raise _without_rate(optimizer)
            own.append((group, rate, rate * (1 + (self.factor(optimizer) - 1) * self._done(group))))
        if own:
            self._say(optimizer, self.factor(optimizer))
            self._own[optimizer] = own
        for group, _, scaled in own:
            group["lr"] = scaled

    def after(self, optimizer: Any, around: Sequence[Any] = ()) -> None:
        """It has stepped.

        Args:
            optimizer: that has.
            around: whose steps it is inside of.
        """
        if any(optimizer is other for other in around):
            return
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
        loader, now = self._ledger.loader, self._ledger.epochs
        if now is None:
            raise OptionError(
                f"warmup='{self._length:g} epochs' needs a loader with a length, to know when an epoch is over. "
                "Write a number of steps, as warmup=500."
            )
        done = self._seen.setdefault(optimizer, {})
        seen, done[loader] = done.get(loader, math.inf), now
        if now < seen:  # another one, as where it is made anew for each epoch
            seen = math.ceil(now) - 1  # where its present epoch began
        return (now - seen) / self._length

    def _say(self, optimizer: Any, factor: float) -> None:
        rule = "the root of " if factor == math.sqrt(self._size) and not isinstance(self._rule, (int, float)) else ""
        why = "as lr_scale says" if isinstance(self._rule, (int, float)) else f"{rule}{self._size} ranks"
        warmup = f", reached after {self._length:g} {self._unit}" if self._length else ""
        self._ledger.note(f"learning rates of {type(optimizer).__name__} count {factor:.4g} times ({why}){warmup}")


def _without_rate(optimizer: Any) -> OptionError:
    name = type(optimizer).__name__
    return OptionError(
        f"lr_scale scales learning rates, and {name} has none: it chooses them by itself (lr=None), or its groups have "
        f"no 'lr'. Give it one, as {name}(model.parameters(), lr=1e-3), or leave lr_scale out."
    )


def is_adaptive(optimizer: Any) -> bool:
    """Tell Adam's kind, which divides gradients by their size, by its names."""
    return any(word in kind.__name__.lower() for kind in type(optimizer).__mro__ for word in _ADAPTIVE)
