"""What a forward does with the size of its batch while it is tried: numbers that come of it, and branches.

``penalty.sum() / x.size(0)`` is told from what each rank would divide by where outputs are compared, but for a penalty
that is zero in the first call. So the numbers themselves are compared, of all rows and of some, and the lines that run.
"""

from __future__ import annotations

import numbers
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch.overrides import TorchFunctionMode

from ..batch import factories, row_sums
from ..ledger import model_line
from ..structure import leaves

_OURS = str(Path(__file__).parents[1]) + os.sep  # what is called from here while a forward is tried is not its own
_HANDING_ON = (row_sums.__file__, factories.__file__, str(Path(_OURS, "patches")), str(Path(_OURS, "patch.py")))
# Whose integers are sizes, or places among rows: with fewer rows there are fewer.
_OF_SIZES = {
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "arange", "as_strided", "broadcast_to", "chunk", "conv1d", "conv2d", "conv3d",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "diagonal", "empty", "empty_strided", "expand",
    "eye", "fold", "full", "group_norm", "interpolate", "linspace", "logspace", "narrow", "new_empty",
    "new_full", "new_ones", "new_zeros", "one_hot", "ones", "pad", "rand", "randint", "randn", "randperm",
    "range", "repeat", "repeat_interleave", "reshape", "resize_", "roll", "select", "split", "split_with_sizes",
    "tensor_split", "tile", "topk", "tril_indices", "triu_indices", "unflatten", "unfold", "view", "zeros",
    "__getitem__", "__setitem__",
}  # fmt: skip
# Function -> where the argument stands that is no size.
_VALUES = {"full": (1, "fill_value"), "new_full": (2, "fill_value"), "__setitem__": (2, "value")}


class Given(NamedTuple):
    """What one call was given."""

    function: str
    numbers: tuple[Any, ...]
    line: str  # of the model


class GivenNumbers:
    """Of one forward, in their order."""

    def __init__(self) -> None:
        """Note nothing yet."""
        self._given: list[Given] = []
        self._lines: dict[str, None] = {}  # of the model, that call functions

    def note(self, function: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Note a call by the script, or by a package that it uses."""
        caller = sys._getframe(2).f_code.co_filename
        if caller.startswith(_OURS) and not caller.startswith(_HANDING_ON):
            return
        line, found = model_line(), tuple(_numbers(function, args, kwargs))
        if not caller.startswith(_OURS) or caller == row_sums.__file__:
            self._lines[line] = None
        if found:
            self._given.append(Given(function, found, line))

    def differing(self, whole: GivenNumbers) -> str:
        """Give the line that gives another number for some rows than for all.

        Args:
            whole: of the same forward, of all rows.
        """
        ours, theirs = self._given, whole._given
        if [given.function for given in ours] == [given.function for given in theirs]:
            pairs = zip(ours, theirs, strict=True)
            return next((one.line for one, other in pairs if _differ(one.numbers, other.numbers)), "")
        # It loops over the rows, which may have numbers of their own.
        only_ours, only_theirs = _beside(ours, theirs), _beside(theirs, ours)
        functions = {given.function for given in only_theirs}
        return next((given.line for given in only_ours if given.function in functions), "")

    def parting(self, whole: GivenNumbers) -> str:
        """Give a line that calls functions for some rows and not for all, or the other way round.

        Args:
            whole: of the same forward, of all rows.
        """
        return next(iter(self._lines.keys() ^ whole._lines.keys()), "")


class NotingNumbers(TorchFunctionMode):
    """Notes what is given inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.given = GivenNumbers()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call it, and note."""
        kwargs = kwargs or {}
        self.given.note(getattr(func, "__name__", ""), args, kwargs)
        return func(*args, **kwargs)


def _numbers(function: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterable[Any]:
    sizes = function in _OF_SIZES
    position, name = _VALUES.get(function, (None, None))
    for values in (enumerate(args), kwargs.items()):
        for key, value in values:
            for _, leaf in leaves(value):
                if not isinstance(leaf, numbers.Number) or isinstance(leaf, bool):
                    continue
                if not (sizes and isinstance(leaf, numbers.Integral)) or key in (position, name):
                    yield leaf


def _differ(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    if len(one) != len(other):  # a list with a number for each row; or with the same one
        return len({*one}) == len({*other}) == 1 and not _is_same(one[0], other[0])
    return not all(map(_is_same, one, other))


def _is_same(one: Any, other: Any) -> bool:
    return bool(one == other or (one != one and other != other))


def _beside(some: Sequence[Given], others: Sequence[Given]) -> list[Given]:
    given = {(each.function, repr(each.numbers)) for each in others}
    return [each for each in some if (each.function, repr(each.numbers)) not in given]
