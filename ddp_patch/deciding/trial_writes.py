"""Gradients and values that the trial of an autograd function gave to parameters that it was not given."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..batch.observation import Observation
from ..errors import BatchError
from ..gradients.grad_watch import grad_of, set_grad

_SMALL = 4096  # numbers of a parameter that is put back


class TrialWrites:
    """What parameters held before a trial, by whichever way the code of a function may come to them."""

    def __init__(self, seen: Observation) -> None:
        """Look at all that were alive at the first trial in a call.

        Args:
            seen: of the call.
        """
        with torch._C.DisableTorchFunction():  # modes that observe a forward are to hear of the forward alone
            if seen.alive is None:
                seen.alive = [*_alive()]
            self._before = [_Held.by(leaf) for leaf in seen.alive]

    def undo(self, name: str) -> bool:
        """Put back what they held, and tell whether some held something else.

        Args:
            name: of the function.

        Raises:
            BatchError: for a large one that was written to in place.
        """
        with torch._C.DisableTorchFunction():
            return sum(held.put_back(name) for held in self._before) > 0  # each of them


class _Held(NamedTuple):
    """What one parameter held."""

    leaf: Tensor
    version: int
    values: Tensor | None  # unless there are many
    grad: Tensor | None
    grad_version: int | None
    grad_values: Tensor | None

    @classmethod
    def by(cls, leaf: Tensor) -> _Held:
        grad = grad_of(leaf)
        return cls(leaf, leaf._version, _copy(leaf), grad, _writes_to(grad), _copy(grad))

    def put_back(self, name: str) -> bool:
        """Put it back, and tell whether it holds something else."""
        has_other, is_written = grad_of(self.leaf) is not self.grad, self.leaf._version != self.version
        if has_other:
            set_grad(self.leaf, self.grad)
        if is_written:
            _write(name, self.leaf, self.values)
        if self.grad is not None and _writes_to(self.grad) != self.grad_version:
            _write(name, self.grad, self.grad_values)
            return True
        return has_other or is_written


def _alive() -> Iterator[Tensor]:
    kinds = {nn.Parameter, *_subclasses(nn.Parameter)}
    both = {Tensor, *kinds}
    # By its type, of half a million: asked itself, a thing may answer for another one.
    for tensor in [thing for thing in gc.get_objects() if type(thing) in both]:
        is_leaf = type(tensor) in kinds or (tensor.requires_grad and _is_leaf(tensor))
        if is_leaf and not tensor.is_inference():
            yield tensor


def _subclasses(kind: type) -> Iterator[type]:
    subclasses: list[type] = kind.__subclasses__()
    for subclass in subclasses:
        yield subclass
        yield from _subclasses(subclass)


def _is_leaf(tensor: Tensor) -> bool:
    """Tell whether gradients are added to a tensor, of the script's or garbage that only this rank still has."""
    try:
        return tensor.is_leaf
    except RuntimeError:  # a view made under no_grad, of what was written to since: torch gives it no node
        return False


def _writes_to(tensor: Tensor | None) -> int | None:
    return None if tensor is None or tensor.is_inference() else tensor._version


def _copy(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None or tensor.numel() > _SMALL else tensor.detach().clone()


def _write(name: str, tensor: Tensor, values: Tensor | None) -> None:
    if values is None or values.shape != tensor.shape:
        raise BatchError(
            f"{name} writes in place to a tensor of shape {tuple(tensor.shape)}, or to its gradient, that it is not "
            f"given as an argument, so it cannot be tried whether it keeps rows apart. Pass it: {name}.apply(..., "
            "weight)."
        )
    tensor.data.copy_(values)
