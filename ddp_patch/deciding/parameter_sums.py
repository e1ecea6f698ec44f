"""Sums over a batch in a backward of the script's own that nothing but the gradients of parameters are made of.

``grad.sum(0)`` for a bias, ``grad.t().mm(x)`` for a weight, ``(grad * mask).sum()`` for a step size that is learned: on
rows each rank has its part, and DDP adds the parts up. Such a sum ties rows together where it comes to them again, and
where it is clamped, added to what is no sum, or kept. The functions that it comes to tell, whatever the values are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..batch.names import function_name
from ..batch.observation import Observation
from ..batch.shared_memory import shares_memory
from ..batch.tensor import BatchTensor
from ..structure import leaves

# What is asked about a tensor, and not of its values.
_ABOUT = {
    "__get__", "__len__", "dim", "element_size", "is_complex", "is_contiguous", "is_floating_point", "ndimension",
    "nelement", "numel", "size", "stride",
}  # fmt: skip
# What gives of the parts of a batch the parts of what it gives of all.
_SUMMING = {"sum", "mm", "matmul", "bmm", "mv", "dot", "einsum", "tensordot", "__matmul__", "__rmatmul__"}
_ALONE = {  # of one sum, that of its parts
    "sum", "mean", "neg", "__neg__", "view", "reshape", "view_as", "reshape_as", "flatten", "unflatten", "t", "T", "mT",
    "transpose", "permute", "movedim", "squeeze", "unsqueeze", "expand", "expand_as", "contiguous", "clone", "detach",
    "data", "to", "type", "type_as", "float", "double", "half", "bfloat16", "__getitem__", "narrow", "select",
}  # fmt: skip
_BY_OTHERS = _SUMMING - {"sum"} | {"mul", "mul_", "__mul__", "__rmul__", "__imul__", "outer"}  # and by one that is none
OF_WHOLE = "it gives a gradient to what every rank has whole"
_DIVIDING = {"div", "div_", "__truediv__", "__itruediv__", "true_divide"}
_JOINING = {"stack", "cat"}
_ADDING = {"add", "add_", "__add__", "__radd__", "__iadd__", "sub", "sub_", "__sub__", "__rsub__", "__isub__"}


class ParameterSums(TorchFunctionMode):
    """Follows what looks at the whole of a batch, for as long as it is plain and floating-point."""

    def __init__(self, seen: Observation) -> None:
        """Follow nothing yet.

        Args:
            seen: notes that rows are tied together, which is taken back while it may be a parameter's gradient alone.
        """
        super().__init__()
        self._seen = seen
        self._tied: dict[int, tuple[Tensor, str]] = {}  # by the identity of a tensor: it, and what ties it to all rows
        self._made: dict[int, Tensor] = {}  # here; others may be seen by the next call

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Carry out a function, and note what it makes of what is followed."""
        kwargs = kwargs or {}
        before = self._seen.why_not_split
        result = func(*args, **kwargs)
        given = _tensors((args, kwargs))
        why, name = self._why(given), function_name(func).rpartition(".")[2]
        is_sum = why is None or self._keeps_parts(name, args, given)
        is_new = before is None and self._seen.why_not_split is not None
        if is_new:
            why, self._seen.why_not_split = why or self._seen.why_not_split, None
            is_sum = is_sum and name in _SUMMING
        made = _tensors(result)
        is_of_given = getattr(func, "__name__", "") == "__setitem__" or any(one is its for one in made for its in given)
        if why is None and name == "grad" and all(isinstance(one, BatchTensor) for one in _tensors(args[:1])):
            self._made.update((id(one), one) for one in made)
            self._tied.update((id(one), (one, OF_WHOLE)) for one in made if _is_plain(one))  # of what rows gave
            return result
        if why is None:
            if not is_of_given and not self._is_view_of_others(made, given):
                self._made.update((id(one), one) for one in made)
            return result
        if not made and not is_new and getattr(func, "__name__", "") in _ABOUT:
            return result
        written = args[:1] if not made else [one for one in made if any(one is its for its in given)]
        may_be_gradient = is_sum and bool(made) and all(_is_plain(one) for one in (*made, *written))
        if before is not None or not may_be_gradient or any(id(one) not in self._made for one in written):
            self._seen.why_not_split = before or why
            return result
        for one in (*made, *written):
            self._made[id(one)], self._tied[id(one)] = one, (one, why)
        return result

    def _why(self, tensors: Iterable[Tensor]) -> str | None:
        return next((self._tied[id(one)][1] for one in tensors if id(one) in self._tied), None)

    def _keeps_parts(self, name: str, args: tuple[Any, ...], given: list[Tensor]) -> bool:
        """Tell whether the parts of a sum give the parts of what a function gives of it."""
        count = sum(id(one) in self._tied for one in given)
        if name in _ADDING or name in _JOINING:
            return count == len(given) and (name in _JOINING or not any(type(arg) in (int, float) for arg in args))
        if name in _DIVIDING:
            return count == 1 and id(args[0]) in self._tied
        return count == 1 and (name in _BY_OTHERS or (name in _ALONE and len(given) == 1))

    def close(self, args: tuple[Any, ...], outputs: Any, grads: tuple[Any, ...]) -> None:
        """Note in the observation what has come to anything but the gradients of plain tensors.

        Args:
            args: of the call.
            outputs: of its forward.
            grads: of its backward, of each argument.
        """
        of_rows = [grad for arg, grad in zip(args, grads, strict=False) if isinstance(arg, BatchTensor)]
        given = [id(grad) for grad in grads]
        kept = [one for one, _ in self._tied.values() if sys.getrefcount(one) > _OURS + given.count(id(one))]
        self._seen.why_not_split = self._seen.why_not_split or self._why((*_tensors((args, outputs, of_rows)), *kept))

    def are_followed(self, tensors: Iterable[Tensor]) -> bool:
        """Tell whether tensors are sums over the batch, and nothing else."""
        return all(id(one) in self._tied for one in tensors)

    def _is_view_of_others(self, made: list[Tensor], given: list[Tensor]) -> bool:
        others = [one for one in given if type(one) is Tensor and id(one) not in self._made]
        return any(shares_memory(one, other) for one in made if type(one) is Tensor for other in others)

    @property
    def has_some(self) -> bool:
        """Whether anything is followed."""
        return bool(self._tied)


def _references() -> int:
    one = Tensor()
    tied, made = {0: (one, "")}, {0: one}
    del one
    return [sys.getrefcount(one) for one, _ in tied.values()][len(made) - 1]


_OURS = _references()


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for _, leaf in leaves(value) if isinstance(leaf, Tensor)]


def _is_plain(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and not isinstance(tensor, BatchTensor) and tensor.is_floating_point()
