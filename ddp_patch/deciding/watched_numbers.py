"""Does a function of the script's look at a number that it is given, or only calculate with it?

A factor that changes in every step, as that of gradient reversal, would make a form of call in each. What never looks
at it does for one factor what it does for another.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..batch.rules.elementwise import to_local_form
from ..batch.tensor import BatchTensor
from ..batch.world import World
from ..structure import leaves, map_leaves

_ARITHMETIC = ("add", "sub", "mul", "truediv", "pow")
_NUMBERS = (int, float)


class Looks:
    """Whether somebody looked at numbers that were given out, or made something of them that is not of the rows."""

    def __init__(self, dim: int, count: int) -> None:
        """Begin with none given out.

        Args:
            dim: that rows are along.
            count: of rows.
        """
        self.any = False
        self._dim, self._count = dim, count

    def note_operands(self, values: Any) -> None:
        """Note what a number is combined with: a tensor of numbers alone may be looked at in its place."""
        tensors = [leaf for _, leaf in leaves(values) if isinstance(leaf, Tensor)]
        self.any = self.any or all(self._count not in leaf.shape[self._dim : self._dim + 1] for leaf in tensors)


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
        looks = next(leaf._looks for _, leaf in leaves((args, kwargs or {})) if type(leaf) is cls)
        looks.note_operands((args, kwargs or {}))

        def value(leaf: Any) -> Any:
            return leaf._value if type(leaf) is cls else leaf

        args, kwargs = map_leaves(value, (args, kwargs or {}))
        return func(*args, **kwargs)


def _calculating(function: Callable[[Any, Any], Any], reflected: bool) -> Callable[[WatchedNumber, Any], Any]:
    def method(self: WatchedNumber, other: Any) -> Any:
        value = other._value if type(other) is WatchedNumber else other
        if isinstance(value, Tensor):
            self._looks.note_operands(value)
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


def only_calculates(args: tuple[Any, ...], tried: Callable[[Callable[[Any], Any]], Any], world: World) -> bool:
    """Tell whether neither half looks at the floats that it is given, for this rank's rows.

    Args:
        args: of the call.
        tried: runs both halves on what a function makes of each of these.
        world: the ranks.
    """
    layout = next(leaf._layout for _, leaf in leaves(args) if isinstance(leaf, BatchTensor))
    looks = Looks(layout.dim, layout.counts[world.rank])
    try:
        tried(lambda leaf: WatchedNumber(leaf, looks) if type(leaf) is float else to_local_form(leaf))
    except Exception:  # noqa: BLE001 — the author's code, on what is no float
        return False
    return not looks.any


def magnitude(value: float) -> str:
    """Name what numbers have in common that differ by little: sign and magnitude. Zero, infinity and NaN are alone."""
    if not value or not math.isfinite(value):
        return repr(value)
    return f"{'-' if value < 0 else ''}2**{4 * (math.frexp(value)[1] // 4)}"
