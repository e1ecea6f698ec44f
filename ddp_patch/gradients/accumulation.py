"""Learn from the script which of its backwards end an optimizer step, so that the others need no all-reduce.

Gradient accumulation calls backward K times per step; a GAN's generator loss leaves gradients in the discriminator
that nobody uses. A prediction only decides *when* gradients are averaged, never whether: see ``gradients``.
"""

from __future__ import annotations

_LONGEST = 4096  # backwards in one step; a script that never steps is not learned from


class AccumulationSchedule:
    """One replica's backwards per optimizer step, by position."""

    def __init__(self, declared: int | None = None) -> None:
        """Start with what the option ``accumulate=K`` declares, or with nothing."""
        self._declared = declared is not None
        # Whether the gradients were looked at before the next backward or zero_grad, for each backward of a step.
        self._pattern: tuple[bool, ...] | None = (False,) * (declared - 1) + (True,) if declared else None
        self._cycle: list[bool] = []
        self._last: tuple[bool, ...] | None = None
        self._read: set[int] = set()  # positions where somebody reads gradients between backwards
        self.accumulates = not all(self._pattern or ())
        """Whether some backward of a step is followed by another one before its gradients are looked at."""

    @property
    def is_at_start(self) -> bool:
        """Whether no backward has come since the last step."""
        return not self._cycle

    def backward(self) -> bool:
        """Note a backward; tell whether its gradients are expected to be looked at."""
        is_wanted = not self.accumulates or self.is_next_wanted()
        if len(self._cycle) < _LONGEST:
            self._cycle.append(False)
        return is_wanted

    def is_next_wanted(self) -> bool:
        """Tell whether the gradients of the next backward are expected to be looked at."""
        position = len(self._cycle)
        return (
            self._pattern is None
            or position >= len(self._pattern)
            or self._pattern[position]
            or (position in self._read)
        )

    def read(self) -> None:
        """Note that the last backward's gradients were read outside an optimizer step."""
        if self._cycle:
            self._cycle[-1] = True
            self._read.add(len(self._cycle) - 1)

    def step(self) -> None:
        """Note an optimizer step: it looks at the gradients, and the next step begins."""
        if not self._cycle:
            return
        self._cycle[-1] = True
        self._read.discard(len(self._cycle) - 1)  # before a step, as clipping does: not between backwards
        cycle = tuple(self._cycle)
        self._cycle.clear()
        # A ragged end of an epoch does not change the schedule; the same thing twice in a row does.
        if not self._declared and (self._pattern is None or cycle == self._last):
            self._pattern, self.accumulates = cycle, not all(cycle)
        self._last = cycle

    def forget_cycle(self) -> None:
        """Begin anew without learning: what happened was a closure's, inside a step."""
        self._cycle.clear()
