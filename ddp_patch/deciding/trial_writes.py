"""Gradients and values that the trial of an autograd function gave to parameters that it was not given."""

from __future__ import annotations

import gc
from collections.abc import Iterator

from torch import Tensor, nn

from ..errors import BatchError
from ..gradients.grad_watch import grad_of, set_grad

_SMALL = 4096  # numbers of a parameter that is put back


class TrialWrites:
    """What parameters held before a trial, by whichever way the code of a function may come to them."""

    def __init__(self) -> None:
        """Look at all that are alive."""
        self._before = [
            (leaf, leaf._version, _copy(leaf), grad, _writes_to(grad), _copy(grad))
            for leaf in _alive()
            for grad in (grad_of(leaf),)
        ]

    def undo(self, name: str) -> bool:
        """Put back what they held, and tell whether some held something else.

        Args:
            name: of the function.

        Raises:
            BatchError: for a large one that was written to in place.
        """
        has_some = False
        for leaf, version, values, grad, grad_version, grad_values in self._before:
            now = grad_of(leaf)
            if now is not grad:
                has_some = True
                set_grad(leaf, grad)
            if leaf._version != version:
                has_some = True
                _put_back(name, leaf, values)
            if grad is not None and _writes_to(grad) != grad_version:
                has_some = True
                _put_back(name, grad, grad_values)
        return has_some


def _alive() -> Iterator[Tensor]:
    for thing in gc.get_objects():
        kind = type(thing)  # asked itself, a thing may answer for another one
        is_leaf = issubclass(kind, nn.Parameter) or (kind is Tensor and thing.requires_grad and thing.is_leaf)
        if is_leaf and not thing.is_inference():
            yield thing


def _writes_to(tensor: Tensor | None) -> int | None:
    return None if tensor is None or tensor.is_inference() else tensor._version


def _copy(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None or tensor.numel() > _SMALL else tensor.detach().clone()


def _put_back(name: str, tensor: Tensor, values: Tensor | None) -> None:
    if values is None or values.shape != tensor.shape:
        raise BatchError(
            f"{name} writes in place to a tensor of shape {tuple(tensor.shape)}, or to its gradient, that it is not "
            f"given as an argument, so it cannot be tried whether it keeps rows apart. Pass it: {name}.apply(..., "
            "weight)."
        )
    tensor.data.copy_(values)
