"""Sums over a batch in a backward of the script's own that nothing but the gradients of parameters are made of.

``grad.sum(0)`` for a bias, ``grad.t().mm(x)`` for a weight, ``(grad * mask).sum()`` for a step size that is learned: on
rows each rank has its part, and DDP adds the parts up. Such a sum ties rows together where it comes to them again.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..batch.observation import Observation
from ..batch.shared_memory import shares_memory
from ..batch.tensor import BatchTensor
from ..structure import leaves

# What is asked about a tensor, and not of its values.
_ABOUT = {
    "__get__", "__len__", "dim", "element_size", "is_complex", "is_contiguous", "is_floating_point", "ndimension",
    "nelement", "numel", "size", "stride",
}  # fmt: skip


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
        why = next((self._tied[id(one)][1] for one in given if id(one) in self._tied), None)
        is_new = before is None and self._seen.why_not_split is not None
        if is_new:
            why, self._seen.why_not_split = why or self._seen.why_not_split, None
        made = _tensors(result)
        is_of_given = getattr(func, "__name__", "") == "__setitem__" or any(one is its for one in made for its in given)
        if why is None:
            if not is_of_given and not self._is_view_of_others(made, given):
                self._made.update((id(one), one) for one in made)
            return result
        if not made and not is_new and getattr(func, "__name__", "") in _ABOUT:
            return result
        written = args[:1] if not made else [one for one in made if any(one is its for its in given)]
        may_be_gradient = all(_is_plain(one) for one in (*made, *written)) and (bool(made) or is_of_given)
        if before is not None or not may_be_gradient or any(id(one) not in self._made for one in written):
            self._seen.why_not_split = before or why
            return result
        for one in (*made, *written):
            self._made[id(one)], self._tied[id(one)] = one, (one, why)
        return result

    def close(self, args: tuple[Any, ...], outputs: Any, grads: tuple[Any, ...]) -> None:
        """Note in the observation what has come to anything but the gradients of plain tensors.

        Args:
            args: of the call.
            outputs: of its forward.
            grads: of its backward, of each argument.
        """
        of_rows = [grad for arg, grad in zip(args, grads, strict=False) if isinstance(arg, BatchTensor)]
        for one in _tensors((args, outputs, of_rows)):
            if id(one) in self._tied and self._seen.why_not_split is None:
                self._seen.why_not_split = self._tied[id(one)][1]

    def _is_view_of_others(self, made: list[Tensor], given: list[Tensor]) -> bool:
        others = [one for one in given if type(one) is Tensor and id(one) not in self._made]
        return any(shares_memory(one, other) for one in made if type(one) is Tensor for other in others)

    @property
    def has_some(self) -> bool:
        """Whether anything is followed."""
        return bool(self._tied)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for _, leaf in leaves(value) if isinstance(leaf, Tensor)]


def _is_plain(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and not isinstance(tensor, BatchTensor) and tensor.is_floating_point()
