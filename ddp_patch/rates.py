"""Learning rates for a batch that grows with the ranks, applied while an optimizer steps.

A step of an optimizer takes the script's learning rate times a factor; before and after it, the script and its
schedulers find the rate that they set. So schedulers may be made before or after, and a checkpoint holds the script's
rates, which fit any number of ranks; how far the warmup came is kept beside them, in the optimizer's groups.

Goyal et al. 2017 (https://arxiv.org/abs/1706.02677): linear scaling, gradual warmup. Krizhevsky 2014
(https://arxiv.org/abs/1404.5997): the root. Malladi et al. 2022 (https://arxiv.org/abs/2205.10287): the root for Adam
and RMSprop.
"""

from __future__ import annotations

import functools
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
        self._scaled: weakref.WeakKeyDictionary[Any, list[tuple[dict[str, Any], Any, Any]]] = (
            weakref.WeakKeyDictionary()
        )

    def factor(self, optimizer: Any) -> float:
        """Give what an optimizer's learning rates are multiplied by after the warmup."""
        if isinstance(self._rule, (int, float)):
            return float(self._rule)
        return math.sqrt(self._size) if self._rule == "sqrt" or is_adaptive(optimizer) else float(self._size)

    def meets(self, optimizer: Any) -> None:
        """An optimizer was made: its warmup begins where the loader in use is.

        Raises:
            OptionError: when it stands for a script that has none, whose rate is a number like any other.
        """
        if self.are_scaled and not hasattr(optimizer, "step"):
            raise OptionError(
                f"lr_scale={self._rule!r} scales the learning rates of optimizers, and the script has none: it changes "
                "its parameters by itself. Use torch.optim.SGD, or leave lr_scale out and scale the rate yourself."
            )
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
        groups = [group for other in around for group, _, _ in self._scaled.get(other, [])]
        scaled_already = {id(parameter) for group in groups for parameter in group["params"]}
        unscaled = [group for group in optimizer.param_groups if scaled_already.isdisjoint(map(id, group["params"]))]
        if unscaled:
            self._refuse_same_batches(unscaled)
            self._scale(optimizer, unscaled)
            self._say(optimizer, self.factor(optimizer))

    def _scale(self, optimizer: Any, groups: Sequence[dict[str, Any]]) -> None:
        factor, entries = self.factor(optimizer), []
        for group in groups:
            rate = group.get("lr")
            if rate is None:
                raise _without_rate(optimizer)
            entries.append((group, rate, rate * (1 + (factor - 1) * self._done(group))))
        self._scaled[optimizer] = entries
        for group, _, scaled in entries:
            group["lr"] = scaled

    def _restore(self, optimizer: Any) -> list[dict[str, Any]]:
        """Give an optimizer the script's rates, but where the script has set another one; return those groups."""
        entries = self._scaled.pop(optimizer, [])
        for group, rate, scaled in entries:
            if group["lr"] is scaled:
                group["lr"] = rate
        return [group for group, _, _ in entries]

    def with_closure(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Have what a step calls find and set the script's rates; give the step's arguments, or None to leave them.

        Args:
            optimizer: that is about to step, after ``before``.
            args: of its step, itself the first.
            kwargs: of its step.
        """
        if optimizer not in self._scaled:
            return None

        def around(closure: Any) -> Any:
            if not callable(closure):
                return closure

            @functools.wraps(closure)
            def called(*arguments: Any, **keywords: Any) -> Any:
                groups = self._restore(optimizer)
                result = closure(*arguments, **keywords)  # where it raises, the step is over
                self._scale(optimizer, groups)
                return result

            return called

        return (args[0], *map(around, args[1:])), {name: around(value) for name, value in kwargs.items()}

    def _refuse_same_batches(self, groups: Sequence[dict[str, Any]]) -> None:
        """Refuse to scale the rates of batches that have not grown, where the step changes something."""
        if not (self._ledger.has_grown or isinstance(self._rule, (int, float))) and _learns(groups):
            raise OptionError(
                f"lr_scale='{self._rule}' scales learning rates as batches grow with the ranks, and before this step "
                "none has grown: batch='per_device' grows those of a DataLoader. Read the rows by one, write the "
                "number as lr_scale=2.0 if the script's batches count the ranks by themselves, or leave lr_scale out."
            )

    def after(self, optimizer: Any, around: Sequence[Any] = ()) -> None:
        """It has stepped.

        Args:
            optimizer: that has.
            around: whose steps it is inside of.
        """
        if any(optimizer is other for other in around):
            return
        groups = self._restore(optimizer)
        if groups and self._length:
            step = self._step(optimizer)
            for group in groups:
                group[DONE] = min(1.0, group.get(DONE, 0.0) + step)

    def _done(self, group: dict[str, Any]) -> float:
        return float(group.setdefault(DONE, 0.0)) if self._length else 1.0

    def _step(self, optimizer: Any) -> float:
        """What part of the warmup the last step was."""
        if self._unit == "steps":
            return 1 / self._length
        loader, now = self._ledger.loader, self._ledger.epochs
        if not loader and not _learns(optimizer.param_groups):
            return 0.0
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


def _learns(groups: Sequence[dict[str, Any]]) -> bool:
    return any(parameter.grad is not None for group in groups for parameter in group["params"])


def _without_rate(optimizer: Any) -> OptionError:
    name = type(optimizer).__name__
    return OptionError(
        f"lr_scale scales learning rates, and {name} has none: it chooses them by itself (lr=None), or its groups have "
        f"no 'lr'. Give it one, as {name}(model.parameters(), lr=1e-3), or leave lr_scale out."
    )


def is_adaptive(optimizer: Any) -> bool:
    """Tell Adam's kind, which divides gradients by their size, by its names; also where another one wraps it."""
    kinds = [type(optimizer), *(type(its) for its in vars(optimizer).values() if hasattr(its, "param_groups"))]
    return any(word in base.__name__.lower() for kind in kinds for base in kind.__mro__ for word in _ADAPTIVE)
