"""The forms in which a module was called, and what is known of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..calling.local_arguments import LocalArgs
from .trial_verdict import SplitDecision

_MOST = 64  # forms in which a module is tried; the others run on batches
_STREAK = 6  # new forms in a row: the next may never come back either


class ModuleState(NamedTuple):
    """Numbers of what a module's forward may branch on: equal ones for equal states."""

    layers: int  # which they are, their modes and plain attributes
    reached: int  # what their code reaches beside


class CallForm(NamedTuple):
    """What may decide how a call is carried out, but for the sizes of its tensors."""

    state: ModuleState
    arguments: tuple[Any, ...]  # (path, form) of each leaf
    trained: frozenset[int]  # parameters that want gradients, by identity
    with_grad: bool
    gathers_scalars: bool
    is_single: bool  # a rank has one row, which forwards squeeze, or treat as a case of its own
    is_joined: bool  # of several batches, so that neighbours of a rank's rows may be no neighbours
    dim: int  # along which rows are dealt


@dataclass(slots=True)
class Form:
    """What is known of calls of one form. Other sizes of the same form are observed, once each, and not tried again.

    A forward that asks how large its batch is may calculate with that, or branch on it: every other number of rows is
    observed and tried.
    """

    decision: SplitDecision
    by_sizes: dict[Any, SplitDecision]
    holds_for_all_sizes: bool
    is_size_dependent: bool = False
    totals: set[Any] = field(default_factory=set)  # numbers of rows that were tried, and how they were joined
    is_to_be_reported: bool = False  # once a call of this form comes again


@dataclass(frozen=True, slots=True)
class FirstCall:
    """What became of a call whose form was not seen before."""

    has_run: bool  # it was computed, on batches
    result: Any
    local_args: LocalArgs
    decision: SplitDecision


class Forms:
    """The forms of one module's calls.

    A number that changes in every step, such as a temperature that is annealed, makes forms that never come back. A
    form that differs from one of another step in numbers only is passed over: it is neither tried nor remembered, and
    runs on batches. If it comes back in another step it is tried then.
    """

    def __init__(self) -> None:
        """Start with none."""
        self.entries: dict[CallForm, Form] = {}
        self.is_passed_over = False  # the form that was asked for last
        self.decision_when_passed_over: SplitDecision | None = None  # on the forms that are passed over
        self.rebound: set[CallForm] = set()  # forms whose forward bound something alike anew: once, perhaps
        self.has_changed_outside = False  # a call did what it may branch on
        self.has_failed_on_batches = False  # one of them did, and all are of one forward
        self.looks_at_numbers = False  # a function that is given floats does, or may
        self._streak = 0
        self._kinds: dict[Any, int] = {}  # forms but for their numbers, and the step in which they came first
        self._passed: deque[tuple[CallForm, int]] = deque(maxlen=16)  # forms that were passed over, and in which step

    def get(self, form: CallForm) -> Form | None:
        """Give what is known of a form."""
        found = self.entries.get(form)
        if found is not None:
            self._streak, self.is_passed_over = 0, False
        return found

    def should_pass_over(self, form: CallForm, kind: Callable[[CallForm], Any], step: int) -> bool:
        """Tell whether a form that is not known is passed over.

        Args:
            form: of a call that is made now.
            kind: gives a form without its numbers.
            step: optimizer steps that were taken so far.
        """
        came = next((before for passed, before in self._passed if passed == form), None)
        changes = self._streak >= _STREAK or self._kinds.setdefault(kind(form), step) != step
        self.is_passed_over = came == step or len(self.entries) >= _MOST or (came is None and changes)
        self._streak += 1
        if self.is_passed_over and came is None:
            self._passed.append((form, step))
        return self.is_passed_over

    def difference(self, form: CallForm) -> tuple[str, Any]:
        """Name an argument in which a form differs from the last one that was tried, if that is the difference.

        Returns:
            its name and its form; nothing if none is another one.
        """
        before = dict([*self.entries][-1].arguments) if self.entries else {}
        found = ((f"its argument {path}", value) for path, value in form.arguments if before.get(path) != value)
        return next(found, ("", None))
