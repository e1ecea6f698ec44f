"""A loss whose sum over the ranks nobody has asked for yet.

Summing it between forward and backward would be a second point in every step where the ranks wait for the slowest. So
it travels with the last bucket of gradients, if the backward that starts from it sends one, or by itself when somebody
looks at it. From then on it is a plain tensor.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..errors import BatchError
from .world import World

_Node: type = torch.autograd.function.BackwardCFunction  # of functions in Python
_LONGEST = 64  # functions between what a model returned and a loss
# A quotient of two numbers of these, which has at least twice their digits and two more before it is rounded to one, is
# the one that is rounded at once (Figueroa, "When is double rounding innocuous?", 1995); one of doubles is a double's.
_DIVIDED_AS_FLOATS = frozenset({torch.float32, torch.float64})
_EXACT = 2.0**24  # the largest whole number up to which each is a float


class PendingReduction:
    """A sum over the ranks, and the mean that it becomes."""

    depth = 0

    def __init__(
        self, partial: Tensor, count: Tensor | None, divisor: float | Tensor, dtype: torch.dtype | None = None
    ) -> None:
        """Keep this rank's part.

        Args:
            partial: what is summed, 0-dim.
            count: this rank's part of what the sum is divided by, 0-dim; None if the divisor is known.
            divisor: the known one, or what the count is if no row was left out.
            dtype: of the value, if narrower than that of the sum.
        """
        self.dtype = dtype or partial.dtype
        part = partial.detach()
        # A sum of floats and a count make two floats; both in one step.
        self.part = part.view(1).clone() if count is None else torch.stack([part, count.detach()])
        self.expected = divisor
        self.of: Any = None  # the node of what it was computed of, until it is summed
        self.assumed = False  # a backward went on with the expected divisor
        self._tie: Any = None  # the node that it left a model through
        self._divisor: float | Tensor | None = divisor if count is None else None
        self._sum: Tensor | None = None
        self._numbers: list[Any] | None = None  # likewise, once they were looked at

    def arrived(self, total: Tensor) -> None:
        """Take the sum of all ranks' parts, which travelled with something else."""
        self._sum = total
        self.let_go()

    @property
    def reductions(self) -> list[PendingReduction]:
        """Itself; what is derived has several."""
        return [self]

    @property
    def multiple_of(self) -> PendingReduction:
        """Itself: the reduction that all gradients of a backward from it are proportional to."""
        return self

    def let_go(self) -> None:
        """Keep the graph no longer."""
        self.of = self._tie = None

    def leave_through(self, node: Any) -> None:
        """It leaves a model, through a node of the graph."""
        self._tie = node

    def wait(self) -> Tensor:
        """Give the value; one all_reduce, if it did not arrive by other means."""
        total = self._summed()
        if total is None:
            return (self.part[0] / self.expected).to(self.dtype)
        divisor = total[1] if self._divisor is None else self._divisor
        value = total[0] if isinstance(divisor, int) and divisor == 1 else total[0] / divisor
        return value.to(self.dtype)

    def write_to(self, place: Tensor) -> None:
        """Write the value to a 0-dim tensor."""
        if self._numbers is not None and self.dtype in _DIVIDED_AS_FLOATS:
            divisor = self._numbers[1] if self._divisor is None else self._divisor
            if isinstance(divisor, (int, float)) and 0 < divisor <= _EXACT:
                place.fill_(self._numbers[0] / divisor)  # Python's quotient, rounded once more, is the tensors' own
                return
        place.copy_(self.wait())

    def _summed(self) -> Tensor | None:
        """Give the sum of all ranks' parts; None in a trial that does not ask for it."""
        if self._sum is None and World.current is None and not World.is_child:
            raise BatchError(
                "A loss is looked at for the first time after ddp_patch.disable(), when its rows are no longer summed. "
                "Look at it before: value = loss.item()."
            )
        if self._sum is None:
            if World.get().skips_collectives:
                return None
            self.arrived(World.get().all_reduce(self.part))
        return self._sum

    @property
    def divisor(self) -> float | Tensor:
        """What the sum is divided by: the expected value while a backward relies on it, the true one otherwise."""
        if self._divisor is not None:
            return self._divisor
        if self.assumed:
            return self.expected
        total = self._summed()
        assert total is not None
        return total[1]

    def look_at_count(self) -> float:
        """Give the true divisor of a loss with a count. It waits for the device."""
        total = self._summed()
        assert total is not None
        self._numbers = total.tolist()
        return self._numbers[1]  # type: ignore[no-any-return]

    @property
    def source(self) -> Any:
        """The node that a backward from it comes by, before it comes to any parameter."""
        if self._tie is not None:
            return self._tie
        return _way_of(self.of)

    @property
    def is_open(self) -> bool:
        """Tell whether the sum is not known yet."""
        return self._sum is None

    @property
    def has_count(self) -> bool:
        """Tell whether the divisor is summed over the ranks as well."""
        return self._divisor is None


class Derived:
    """What became of reductions by numbers and by addition: ``(loss_a + 0.1 * loss_b) / 2``."""

    def __init__(self, func: Any, operands: list[Any], is_multiple: bool) -> None:
        """Keep what to compute when the sums are known.

        Args:
            func: that was called.
            operands: reductions, numbers, and tensors that every rank has.
            is_multiple: the first one, times a number.
        """
        self._func = func
        self._operands = operands
        self._sent: list[PendingReduction] = []
        made_of = [operand for operand in operands if isinstance(operand, (PendingReduction, Derived))]
        self.reductions: list[PendingReduction] = distinct(operand.reductions for operand in made_of)
        self.depth: int = 1 + max(operand.depth for operand in made_of)
        self.multiple_of: PendingReduction | None = made_of[0].multiple_of if is_multiple else None

    @property
    def part(self) -> Tensor:
        """What this rank gives to the sums that are not known yet."""
        self._sent = [reduction for reduction in self.reductions if reduction.is_open]
        return torch.cat([reduction.part for reduction in self._sent])

    @property
    def is_open(self) -> bool:
        """Tell whether some sum is not known yet."""
        return any(reduction.is_open for reduction in self.reductions)

    @property
    def source(self) -> Any:
        """A node that a backward from it comes by, before it comes to any parameter."""
        return next((reduction.source for reduction in self.reductions if reduction.source is not None), None)

    def arrived(self, total: Tensor) -> None:
        """Take the sums of all ranks' parts."""
        for reduction, chunk in zip(
            self._sent, total.split([len(reduction.part) for reduction in self._sent]), strict=True
        ):
            reduction.arrived(chunk)

    def let_go(self) -> None:
        """Keep the graph no longer."""
        for reduction in self.reductions:
            reduction.let_go()

    def leave_through(self, node: Any) -> None:
        """It leaves a model, through a node of the graph."""
        for reduction in self.reductions:
            reduction.leave_through(node)

    def wait(self) -> Tensor:
        """Give the value; one all_reduce for all parts of one dtype and device that did not arrive by other means."""
        meet(self.reductions)
        value: Tensor = self._func(*map(_awaited, self._operands))
        return value

    def write_to(self, place: Tensor) -> None:
        """Write the value to a 0-dim tensor."""
        place.copy_(self.wait())


def _way_of(node: Any) -> Any:
    """Follow a graph, past functions of torch's that have one operand and rows of a whole, to any other node."""
    for _ in range(_LONGEST):
        if node is None or (isinstance(node, _Node) and not getattr(node, "leads_on", False)):  # a script's may stop
            break
        further = [other for other, _ in node.next_functions if other is not None]
        if len(further) != 1:
            break
        node = further[0]
    return node


def distinct(reductions: Iterable[list[PendingReduction]]) -> list[PendingReduction]:
    """Name each reduction of several lists once, in their order."""
    return list({id(reduction): reduction for some in reductions for reduction in some}.values())


def meet(reductions: list[PendingReduction]) -> None:
    """Wait for several reductions with one all_reduce, if they are of one kind."""
    left = [reduction for reduction in reductions if reduction.is_open]
    if (
        len(left) < 2
        or World.get().skips_collectives
        or len({(reduction.part.dtype, reduction.part.device) for reduction in left}) > 1
    ):
        return
    total = World.get().all_reduce(torch.cat([reduction.part for reduction in left]))
    for reduction, chunk in zip(left, total.split([len(reduction.part) for reduction in left]), strict=True):
        reduction.arrived(chunk)


def _awaited(operand: Any) -> Any:
    return operand.wait() if isinstance(operand, (PendingReduction, Derived)) else operand
