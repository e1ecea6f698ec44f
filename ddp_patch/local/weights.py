"""What a rank's rows count in the mean of all ranks' rows, where ranks have not equally many (``tail="exact"``).

A backward begins with the weight of its batch. So every gradient of it is weighed once, whatever it goes through: two
models one after the other, a method beside ``forward``, a parameter beside the models; and what ``torch.autograd.grad``
gives to a penalty is the gradient itself. Outputs keep the weight of their batch, as a backward can have but one.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import BatchError
from ..ledger import script_line
from ..structure import map_leaves


class Share(NamedTuple):
    """This rank's rows of a batch of which ranks have not equally many."""

    rank: int
    counts: tuple[int, ...]  # of the rows of every rank

    @classmethod
    def of(cls, rows: int, rank: int, size: int) -> Share | None:
        """Give a rank's, where each has every Nth row; None where all have equally many."""
        return None if rows % size == 0 else cls(rank, tuple(len(range(each, rows, size)) for each in range(size)))

    @property
    def local_rows(self) -> int:
        """How many this rank has."""
        return self.counts[self.rank]

    @property
    def weight(self) -> float:
        """What they count, where the mean over the ranks is taken."""
        return self.local_rows * len(self.counts) / sum(self.counts)


class Weights:
    """Which share of which batch the script works on; None where all ranks have equally many rows."""

    def __init__(self, is_used: bool) -> None:
        """Start without a batch.

        Args:
            is_used: ranks may have one row more or less.
        """
        self.is_used = is_used
        self.begun: Share | None = None  # of the backward that runs
        self.is_backward = False
        self._last: Share | None = None  # of the batch that was fetched last
        self._shares: weakref.WeakKeyDictionary[Any, Share | None] = weakref.WeakKeyDictionary()  # by iterator, in turn
        self._unused: list[tuple[Any, Share | None]] = []  # of batches that no backward has followed, by iterator

    @property
    def now(self) -> Share | None:
        """Of the batch that the script works on: the last one whose loader goes on, or else the very last.

        Where neither is, it does no harm: of what depends on no batch, the ranks' weights make the mean.
        """
        return next(reversed([*self._shares.values()]), self._last)

    def fetched(self, iterator: Any, share: Share | None) -> None:
        """A batch has come.

        Args:
            iterator: of its loader.
            share: this rank's of it.
        """
        if not self.is_used or (not torch.is_grad_enabled() and self._goes_on_without(iterator)):
            return  # a look at other data within a training
        self._shares.pop(iterator, None)
        if torch.is_grad_enabled():
            self._shares.pop(self, None)  # what the script has dealt itself is over
        self._shares[iterator] = self._last = share
        entry = weakref.ref(iterator), share
        if torch.is_grad_enabled() and entry not in self._unused:
            self._unused.append(entry)

    def dealt(self, share: Share | None) -> None:
        """The script has dealt a batch itself, for which this stands as its iterator."""
        self.fetched(self, share)

    def begins(self) -> None:
        """A loader begins: batches of those that the script has dropped meanwhile are of no use any more."""
        self._unused = [(it, share) for it, share in self._unused if it() is not None]

    def ended(self, iterator: Any) -> None:
        """A loader has no batch left: the script goes back to that of another one, if there is one.

        Args:
            iterator: of it.
        """
        self._unused = [(it, share) for it, share in self._unused if it() is not iterator]
        if self._goes_on_without(iterator):
            self._shares.pop(iterator, None)

    def _goes_on_without(self, iterator: Any) -> bool:
        return any(other is not iterator for other in self._shares)

    def mark(self, outputs: Any) -> Any:
        """Have a model's outputs keep the weight of their batch."""
        return map_leaves(self._marked, outputs)

    def weigh(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Begin a backward: weigh its ``tensors``.

        Args:
            args: of ``torch.autograd.backward``.
            kwargs: likewise.

        Raises:
            BatchError: when batches of several loaders were fetched for it, of which the ranks have other shares.
        """
        share = self.begin()
        if share is None:
            return args, kwargs
        roots = args[0] if args else kwargs["tensors"]
        tensors = (roots,) if isinstance(roots, Tensor) else tuple(roots)
        with torch.enable_grad():  # a backward may be called without
            weighed = tuple(_Weighed.apply(tensor, share.weight) for tensor in tensors)  # type: ignore[no-untyped-call]  # not annotated (torch 2.13)
        return (weighed, *args[1:]), {name: value for name, value in kwargs.items() if name != "tensors"}

    def begin(self) -> Share | None:
        """Begin a backward, and give what it counts.

        Raises:
            BatchError: when batches of several loaders were fetched for it, of which the ranks have other shares.
        """
        if self._unused and len({share for _, share in self._unused}) > 1:
            raise _mixed()
        self._unused.clear()
        self.begun = self.now
        return self.begun

    def _marked(self, leaf: Any) -> Any:
        if not (isinstance(leaf, Tensor) and leaf.requires_grad):
            return leaf
        return _Marked.apply(leaf, self, self.now)  # type: ignore[no-untyped-call]  # likewise

    def meets(self, share: Share | None) -> None:
        """A backward has come to outputs of a batch.

        Raises:
            BatchError: when it is another share than it began with.
        """
        if self.is_backward and share != self.begun:
            raise _mixed()


def _mixed() -> BatchError:
    return BatchError(
        f"{script_line()}: a backward goes through batches of which the ranks have other shares, so that none of them "
        "can be weighed by its rows. Call backward for each batch before the next one is fetched, or write tail='pad'."
    )


class _Weighed(torch.autograd.Function):
    """The same value; its gradient counts more or less."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, weight: float) -> Tensor:
        ctx.weight = weight
        return value.detach()  # not view_as, which could not be written to

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.weight, None


class _Marked(torch.autograd.Function):
    """The same value, of a batch with a weight."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, weights: Weights, share: Share | None) -> Tensor:
        ctx.weights, ctx.share = weights, share
        return value.detach()  # likewise

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        ctx.weights.meets(ctx.share)
        return grads[0], None, None
