"""Does a function of the script's look at a number that it is given, or only calculate with it?

A factor that changes in every step, as that of gradient reversal, would make a form of call in each. What never looks
at it does for one factor what it does for another.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..batch.rules.elementwise import to_local_form
from ..batch.world import World
from ..generators import same_draws
from ..structure import map_leaves
from .agreed import muted
from .functions import both_halves, needs_grad
from .twins import Twins

_ARITHMETIC = ("add", "sub", "mul", "truediv", "pow")
_NUMBERS = (int, float)


class Looks:
    """Whether somebody looked at numbers that were given out."""

    def __init__(self) -> None:
        """Begin with none given out."""
        self.any = False


class WatchedNumber:
    """A float that notes who looks at it; what is calculated with it is one too, or a tensor.

    It is none for C, which would read its value past it: such code asks ``__float__``.
    """

    __class__ = float  # type: ignore[assignment]  # for isinstance
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: float, looks: Looks) -> None:
        """Stand for a number.

        Args:
            value: the number.
            looks: where it is noted.
        """
        self._value, self._looks = value, looks

    def __getattr__(self, name: str) -> Any:
        """Give what a float has beside arithmetic: somebody looks."""
        self._looks.any = True
        return getattr(self._value, name)

    def __neg__(self) -> WatchedNumber:  # noqa: D105
        return WatchedNumber(-self._value, self._looks)

    def __pos__(self) -> WatchedNumber:  # noqa: D105
        return self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calculate with the number, in a function of torch."""

        def value(leaf: Any) -> Any:
            return leaf._value if type(leaf) is cls else leaf

        args, kwargs = map_leaves(value, (args, kwargs or {}))
        return func(*args, **kwargs)


def _calculating(function: Callable[[Any, Any], Any], reflected: bool) -> Callable[[WatchedNumber, Any], Any]:
    def method(self: WatchedNumber, other: Any) -> Any:
        value = other._value if type(other) is WatchedNumber else other
        if isinstance(value, Tensor):
            return function(value, self._value) if reflected else function(self._value, value)
        if type(value) not in _NUMBERS:
            return NotImplemented
        result = function(value, self._value) if reflected else function(self._value, value)
        return WatchedNumber(result, self._looks)

    return method


def _looking(name: str) -> Callable[..., Any]:
    def method(self: WatchedNumber, *args: Any) -> Any:
        self._looks.any = True
        return getattr(self._value, name)(*(arg._value if type(arg) is WatchedNumber else arg for arg in args))

    return method


for _name in _ARITHMETIC:
    setattr(WatchedNumber, f"__{_name}__", _calculating(getattr(operator, _name), False))
    setattr(WatchedNumber, f"__r{_name}__", _calculating(getattr(operator, _name), True))
for _name in (
    *("abs", "bool", "ceil", "divmod", "eq", "float", "floor", "floordiv", "format", "ge", "gt", "int", "le", "lt"),
    *("mod", "ne", "rdivmod", "repr", "rfloordiv", "rmod", "round", "str", "trunc"),
):
    setattr(WatchedNumber, f"__{_name}__", _looking(f"__{_name}__"))


def only_calculates_with(function: Any, args: tuple[Any, ...], world: World) -> bool:
    """Tell whether a function never looks at the floats that it is given, in both of its halves. All ranks come here.

    Args:
        function: of the script's, in no observation.
        args: of a call; this rank's rows of them are tried.
        world: the ranks.
    """
    looks = Looks()
    codes = [getattr(half, "__code__", None) for half in (function.forward, function.setup_context, function.backward)]
    if any(code is None or "type" in code.co_names for code in codes):
        looks.any = True  # which it would tell from a float
    twins = Twins()

    def watched(arg: Any) -> Any:
        return WatchedNumber(arg, looks) if type(arg) is float else twins.of(to_local_form(arg))

    with same_draws() as draw_again, torch.no_grad(), muted(world):
        try:
            if not looks.any:
                both_halves(function, tuple(map(watched, args)), needs_grad(args, True), 1.0)
        except Exception:  # noqa: BLE001 — the author's code, on what it was not written for
            looks.any = True
        draw_again()
    return not any(has_looked for (has_looked,) in world.share([looks.any]))


def magnitude(value: float) -> str:
    """Name what numbers have in common that differ by little: sign and magnitude. Zero, infinity and NaN are alone."""
    if not value or not math.isfinite(value):
        return repr(value)
    return f"{'-' if value < 0 else ''}2**{4 * (math.frexp(value)[1] // 4)}"
