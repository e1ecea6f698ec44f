"""What scripts see of the classes of batches and losses: ``torch.Tensor``, as far as Python lets a class say so."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor

from ..ledger import is_of_model


class LikeTensor(type(Tensor)):  # type: ignore[misc]  # torch's metaclass has no public name
    """Classes that are shown as ``torch.Tensor``, and equal to it where a script or a package compares them.

    Torch and ``functools`` look for the classes themselves. ``is`` tells them apart everywhere.
    """

    def __init__(cls, *args: Any) -> None:
        """Say that the class is torch's, by which libraries find what computes with it (opt_einsum does)."""
        super().__init__(*args)
        cls.__module__ = Tensor.__module__

    def __eq__(cls, other: object) -> bool:
        """Answer ``type(x) == torch.Tensor`` and ``type(x) in (torch.Tensor, list)``."""
        if cls is other:
            return True
        is_like = other is Tensor or isinstance(other, LikeTensor)
        return is_like and is_of_model(sys._getframe(1).f_code.co_filename)

    def __call__(cls, *args: Any, **kwargs: Any) -> Tensor:
        """Make a tensor: ``type(x)(2, 3)`` is how scripts made one of the same type before torch 0.4."""
        return Tensor(*args, **kwargs)

    __hash__ = type.__hash__

    def __repr__(cls) -> str:
        """Show what one process shows."""
        return repr(Tensor)

    @property
    def __name__(cls) -> Any:
        """The name that one process has; ``__qualname__`` tells."""
        return Tensor.__name__
