"""What a forward does with the size of its batch while it is tried: numbers that come of it, and branches.

``penalty.sum() / x.size(0)`` is told from what each rank would divide by where outputs are compared, but for a penalty
that is zero in the first call. So what functions are given is compared, of all rows and of some: Python's values,
tensors that are not of the batch, and the lines that call.
"""

from __future__ import annotations

import numbers
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..batch import factories, row_sums
from ..calling.comparison import is_close
from ..calling.graph_units import AnyRows, constants_of
from ..ledger import model_line
from ..structure import leaves
from .readers import CACHES, KERNELS, TORCH, reader

_LAYERS = os.path.join(TORCH, "nn", "")
_OURS = str(Path(__file__).parents[1]) + os.sep  # what is called from here while a forward is tried is not its own
_HANDING_ON = (row_sums.__file__, factories.__file__, str(Path(_OURS, "patches")), str(Path(_OURS, "patch.py")))
# Whose integers are sizes, or places among rows: with fewer rows there are fewer.
_OF_SIZES = {
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "affine_grid", "arange", "as_strided", "bincount", "BoolTensor",
    "broadcast_to", "chunk", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "diagonal", "DoubleTensor", "empty", "empty_strided", "expand", "eye", "FloatTensor",
    "fold", "full", "group_norm", "interpolate", "linspace", "logspace", "LongTensor", "max_unpool1d",
    "max_unpool2d", "max_unpool3d", "multinomial", "narrow", "new", "new_empty", "new_full", "new_ones",
    "new_zeros", "normal", "one_hot", "ones", "pad", "rand", "randint", "randn", "randperm", "range", "repeat",
    "repeat_interleave", "reshape", "resize_", "roll", "select", "split", "split_with_sizes", "sum_to_size",
    "Tensor", "tensor_split", "tile", "topk", "tril_indices", "triu_indices", "unflatten", "unfold", "upsample",
    "view", "zeros", "__getitem__", "__setitem__",
}  # fmt: skip
_ATTENDING = {"scaled_dot_product_attention", "multi_head_attention_forward"}  # causal, or by a mask that says the same
# Function -> where the argument stands that is no size.
_VALUES = {"full": (1, "fill_value"), "new_full": (2, "fill_value"), "__setitem__": (2, "value")}
# Of a plain tensor and a batch, Python asks the batch first, the other way round.
_REFLECTED = {"gt": "lt", "__gt__": "__lt__", "ge": "le", "__ge__": "__le__"}
_ADDING = {"addbmm", "addmm", "addmv", "baddbmm"}
_SYMMETRIC = {"eq", "__eq__", "ne", "__ne__"}
_MOST = 2**16  # entries of a tensor that is kept until it is compared
_ABOUT = {
    "__get__", "__len__", "data_ptr", "dim", "element_size", "get_device", "is_complex", "is_contiguous",
    "is_floating_point", "is_same_size", "ndimension", "nelement", "numel", "size", "storage_offset", "stride", "type",
}  # tensors, of which a batch tells some by itself  # fmt: skip
# Where integers beside floats are no places.
_ARITHMETIC = {
    f"{before}{name}{after}" for name in ("mul", "add", "sub", "div", "truediv", "pow")
    for before, after in (("", ""), ("__", "__"), ("__r", "__"), ("__i", "__"))
}  # fmt: skip
_PLACING = {
    "add", "__add__", "__iadd__", "clamp", "eq", "__eq__", "floor_divide", "__floordiv__", "ge", "__ge__", "gt",
    "__gt__", "le", "__le__", "lt", "__lt__", "mul", "__mul__", "__imul__", "ne", "__ne__", "remainder", "__mod__",
    "__radd__", "__rmul__", "__rsub__", "sub", "__sub__", "__isub__", "where",
}  # fmt: skip


class Given(NamedTuple):
    """What one call was given."""

    function: str
    values: tuple[Any, ...]  # of Python
    tensors: tuple[tuple[Tensor, int] | None, ...]  # with the versions that they had; None for those of the batch
    line: str  # of the model
    has_floats: bool  # of the batch
    is_about_places: bool  # where among the nodes of graphs something is, as in padding


class GivenNumbers:
    """Of one forward, in their order."""

    def __init__(
        self,
        is_plain: Callable[[Tensor], bool] = lambda tensor: False,
        is_place: Callable[[Tensor], bool] = lambda tensor: False,
    ) -> None:
        """Note nothing yet.

        Args:
            is_plain: tells tensors that are not of the batch.
            is_place: tells what says where the nodes of graphs are, and nothing else.
        """
        self._is_plain, self._is_place = is_plain, is_place
        self._given: list[Given] = []
        self._places: dict[tuple[str, str], None] = {}  # functions, and the lines of the model that call them

    def add(self, function: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Note a call by the script, or by a package that it uses."""
        caller = _caller(sys._getframe(2))
        if caller.startswith(_OURS) and not caller.startswith(_HANDING_ON):
            return
        if reader().endswith((*KERNELS, CACHES)):  # which do otherwise for some rows, to the same effect
            return
        if function in _ABOUT:
            return
        line = model_line()
        if function in _REFLECTED:
            function, args = _REFLECTED[function], args[::-1]
        if not caller.startswith(_OURS) or caller == row_sums.__file__:
            self._places[function, line] = None
        values = tuple(_values(function, args, kwargs))
        given = [leaf for _, leaf in leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        plain = [self._is_plain(leaf) for leaf in given]
        tensors = tuple(
            (leaf, leaf._version) if its and not leaf.is_inference() and leaf.numel() <= _MOST else None
            for leaf, its in zip(given, plain, strict=True)
        )
        if function in _ADDING and kwargs.get("beta") == 0:
            tensors = ()  # the first of which may never have been written to
        if function in _SYMMETRIC:
            tensors = tuple(sorted(tensors, key=lambda each: each is not None))
        has_floats = any(leaf.is_floating_point() for leaf, its in zip(given, plain, strict=True) if not its)
        of_batch = [leaf for leaf, its in zip(given, plain, strict=True) if not its]
        is_padding = function in _PLACING and bool(of_batch) and all(map(self._is_place, of_batch))
        self._given.append(Given(function, values, tensors, line, has_floats, is_padding))

    def differing(self, whole: GivenNumbers, rows: AnyRows | None = None) -> str:
        """Give the line that gives something else for some rows than for all.

        Args:
            whole: of the same forward, of all rows.
            rows: which of them these are, if tensors are to be compared.
        """
        ours, theirs = self._given, whole._given
        if [given.function for given in ours] == [given.function for given in theirs]:
            for one, other in zip(ours, theirs, strict=True):
                if not one.is_about_places and _differ(one.values, other.values):
                    return one.line
                if rows is not None and _hold_others(one, other, rows):
                    return one.line
            return ""
        # It loops over the rows, which may have numbers of their own.
        only_ours, only_theirs = _beside(ours, theirs), _beside(theirs, ours)
        functions = {given.function for given in only_theirs}
        return next((given.line for given in only_ours if given.function in functions), "")

    def parting(self, whole: GivenNumbers) -> str:
        """Give a line that calls a function for some rows and not for all, or the other way round.

        Args:
            whole: of the same forward, of all rows.
        """
        return min((line for _, line in self._places.keys() ^ whole._places.keys()), default="")


class NotingNumbers(TorchFunctionMode):
    """Notes what is given inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.given = GivenNumbers()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call it, and note."""
        kwargs = kwargs or {}
        self.given.add(getattr(func, "__name__", ""), args, kwargs)
        return func(*args, **kwargs)


def _caller(frame: FrameType | None) -> str:
    """Give the file that calls, by way of torch's own: not of its layers, which stand for a forward of the script's."""
    while frame is not None and frame.f_code.co_filename.startswith(TORCH):
        if frame.f_code.co_filename.startswith(_LAYERS):
            break
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_filename


def _values(function: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[Any]:
    sizes = function in _OF_SIZES
    position, name = _VALUES.get(function, (None, None))
    for values in (enumerate(args), kwargs.items()):
        for key, value in values:
            for _, leaf in leaves(value):
                if not isinstance(leaf, (numbers.Number, str)) or (function in _ATTENDING and isinstance(leaf, bool)):
                    continue
                if function == "_assert" and isinstance(leaf, str):  # what is said if it fails
                    continue
                is_size = isinstance(value, torch.Size) or (sizes and isinstance(leaf, numbers.Integral))
                is_size = is_size and not isinstance(leaf, bool)
                if not is_size or key in (position, name):
                    yield leaf


def _differ(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    if len(one) != len(other):  # a list with a number for each row; or with the same one
        return len({*one}) == len({*other}) == 1 and not _is_same(one[0], other[0])
    return not all(map(_is_same, one, other))


def _is_same(one: Any, other: Any) -> bool:
    return bool(one == other or (one != one and other != other))


def _hold_others(one: Given, other: Given, rows: AnyRows) -> bool:
    """Tell whether tensors that are not of the batch hold something else for some rows."""
    if len(one.tensors) != len(other.tensors):  # a list of those of each row
        return False
    pairs = [pair for pair in zip(one.tensors, other.tensors, strict=True) if None not in pair]
    is_by_value = one.has_floats and one.function in _ARITHMETIC
    return not all(_hold_the_same(ours, theirs, rows, is_by_value) for ours, theirs in pairs)


def _hold_the_same(ours: Any, theirs: Any, rows: AnyRows, is_by_value: bool) -> bool:
    (one, version), (other, its_version) = ours, theirs
    if one is other or one.layout is not torch.strided or one.dtype != other.dtype or one.dim() != other.dim():
        return True
    if one._version != version or other._version != its_version:
        return True
    dims = [dim for dim in range(one.dim()) if one.shape[dim] != other.shape[dim]]
    if not dims:
        return one.data_ptr() == other.data_ptr() or is_close(one, other)
    # Of a number for each row, integers may be places, at which rows are picked.
    if len(dims) > 1 or not (is_by_value or one.is_floating_point()):
        return True
    same = constants_of(rows, other, dims[0], one.shape[dims[0]])
    return same is None or is_close(one, same)


def _beside(some: Sequence[Given], others: Sequence[Given]) -> list[Given]:
    given = {(each.function, repr(each.values)) for each in others}
    return [each for each in some if (each.function, repr(each.values)) not in given]
