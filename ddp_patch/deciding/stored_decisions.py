"""Which forms of modules' calls were decided on, and how."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn

from ..batch.world import World
from ..calling.call_mode import CallMode
from ..calling.calls import Call, described
from ..calling.census import ModuleContents
from ..calling.local_arguments import LocalArgs
from .argument_forms import forms_of, sizes_of, without_values
from .call_forms import CallForm, Form, Forms
from .fingerprint import Fingerprints
from .guards import CHANGES_OUTSIDE
from .trial_verdict import SplitDecision
from .usual_calls import expected


class StoredDecisions:
    """Remembers decisions, by module and form."""

    def __init__(self, world: World) -> None:
        """Start without any decision."""
        self.fingerprints = Fingerprints()
        self._world = world
        self._forms: weakref.WeakKeyDictionary[nn.Module, Forms] = weakref.WeakKeyDictionary()

    def close(self) -> None:
        """Let go of what was decided: classes and functions of the script, which would outlive it."""
        self._forms.clear()
        self.fingerprints.close()

    def lookup(self, call: Call, local: LocalArgs, form: CallForm) -> SplitDecision | None:
        """Give the decision on calls of a form, if there is one."""
        forms = self._of(call.module)
        stored = forms.get(form)
        if stored is None:
            passes = forms.should_pass_over(form, self.fingerprints.without_numbers, self._world.ledger.steps)
            return forms.decision_when_passed_over if passes else None
        if stored.is_to_be_reported:
            stored.is_to_be_reported = False
            self._report_not_split(call.module, stored.decision)
        if stored.holds_for_all_sizes:
            return stored.decision
        return stored.by_sizes.get(self._sizes(call, local, stored))

    def form(self, call: Call, local: LocalArgs, contents: ModuleContents) -> CallForm:
        """What may decide how a call is carried out, but for the sizes of its tensors."""
        state = self.fingerprints.of(call.module, contents)
        arguments = forms_of(call, local, self.fingerprints.guards(call.module))
        if self._takes_any_number(call):
            arguments = without_values(arguments)
        layout = local.layout
        is_single = min(layout.counts) == 1
        is_joined = bool(layout.pieces) or layout.order is not None
        with_grad = torch.is_grad_enabled()
        trained = contents.trainable
        return CallForm(state, arguments, trained, with_grad, call.gathers_scalars, is_single, is_joined, layout.dim)

    def _takes_any_number(self, call: Call) -> bool:
        """Tell whether a call is of an autograd function that was not seen to look at numbers."""
        return getattr(type(call.module), "stands_for_function", False) and not self._of(call.module).looks_at_numbers

    def looked_up(
        self, call: Call, local: LocalArgs, contents: ModuleContents, is_outermost: bool
    ) -> tuple[CallForm, SplitDecision | None]:
        """Give the form of a call, and the decision on it if there is one."""
        form = self.form(call, local, contents)
        decision = self.lookup(call, local, form)
        if is_outermost:
            self.expect(call, contents, local, form, decision)
        return form, decision

    def expect(
        self, call: Call, contents: ModuleContents, local: LocalArgs, form: CallForm, decision: SplitDecision | None
    ) -> None:
        """Expect further calls like one that was looked up."""
        forms, contents.usual = self._of(call.module), None
        stored = forms.entries.get(form)
        if stored is not None and decision is not None:
            sizes = None if stored.holds_for_all_sizes else self._sizes(call, local, stored)
            contents.usual = expected(call, local, forms, form, sizes, decision)

    def _of(self, module: nn.Module) -> Forms:
        return self._forms.get(module) or self._forms.setdefault(module, Forms())

    def _sizes(self, call: Call, local: LocalArgs, form: Form) -> Any:
        sizes = sizes_of(call, local)
        return (sizes, size_key(local)) if form.is_size_dependent else sizes

    def withdraw(self, call: Call, form: CallForm, why: str) -> None:
        """Compute calls of a form on batches from now on. Every rank comes here at the same call."""
        decision = SplitDecision(CallMode.BATCHES, why)
        self._of(call.module).entries[form] = Form(decision, {}, holds_for_all_sizes=True)
        self._report_not_split(call.module, decision)

    def forget(self, call: Call, form: CallForm) -> None:
        """Forget what was decided on a form whose first call raised an error of the script's own."""
        forms = self._of(call.module)
        forms.entries.pop(form, None)
        forms.has_failed_on_batches = any(stored.decision.mode is CallMode.WHOLE for stored in forms.entries.values())

    def _store(
        self, call: Call, form: CallForm, decision: SplitDecision, local: LocalArgs, is_size_dependent: bool
    ) -> None:
        stored = self._of(call.module).entries.setdefault(form, Form(decision, {}, False))
        if is_size_dependent and not stored.is_size_dependent:
            stored.is_size_dependent = True
            stored.by_sizes.clear()
        stored.totals.add(size_key(local))
        stored.by_sizes[self._sizes(call, local, stored)] = decision
        forms = self._of(call.module)
        if decision.reason == ". ".join(CHANGES_OUTSIDE) and not forms.has_changed_outside:
            forms.has_changed_outside = stored.is_to_be_reported = True  # a first call may, and then no other
        elif decision.mode is not CallMode.ROWS:
            self._report_not_split(call.module, decision)

    def _report_not_split(self, module: nn.Module, decision: SplitDecision) -> None:
        ledger = self._world.ledger
        (ledger.on_whole if decision.mode is CallMode.WHOLE else ledger.on_batches)[described(module)] = decision.reason


def size_key(local: LocalArgs) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """Give the number of rows, and how they were joined."""
    return local.layout.total, local.layout.pieces
