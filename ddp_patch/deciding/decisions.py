"""Decides whether the rows of a module may be computed apart, and remembers that and which arguments are batches.

A call of a form that was not seen before (``call_forms.py``: what may decide how it is carried out, but for sizes) runs
on batches, which is exact whatever the module does, and is observed (``observed_call.py``). If every function kept the
rows apart, the module is tried on copies too (``trial_run.py``), since Python may calculate with the batch size. Calls
of that form then run on rows. A form whose calls raise on batches gets the whole batch, on every rank; forms that are
new in every call are passed over, and their calls run on batches unobserved. Calls with a batch of graphs, whose nodes
are no rows, are tried on copies alone.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from ..batch.world import World
from ..calling.call_mode import CallMode
from ..calling.calls import Call, described
from ..calling.census import Census, ModuleContents
from ..calling.given_back import dealt_tensors
from ..calling.graph_roles import Roles
from ..calling.graphs import Graphs
from ..calling.local_arguments import LocalArgs, local_arguments
from .agreed import agreed, muted
from .call_forms import CallForm, FirstCall, Form
from .code import names_in
from .containers import PLAIN
from .dimensions import DealtDimensions, WorkCounter
from .observed_call import ObservedCall
from .observing import completed_by, is_of_batches
from .stored_decisions import StoredDecisions, size_key
from .trial_run import is_of_machine
from .trial_verdict import SplitDecision
from .unobserved import Unobserved
from .usual_calls import usual


class SplitDecisions(StoredDecisions):
    """Judges a module at its first call in each form, and remembers."""

    def __init__(self, world: World, batch_dims: Mapping[str, int | None], census: Census) -> None:
        """Start without any decision."""
        super().__init__(world)
        self._batch_dims = batch_dims
        self._census = census
        self.dimensions = DealtDimensions(world, batch_dims)
        # module -> batch dimension by name and number of dimensions of an argument
        self._memory: weakref.WeakKeyDictionary[nn.Module, Any] = weakref.WeakKeyDictionary()
        self._roles: weakref.WeakKeyDictionary[nn.Module, Roles] = weakref.WeakKeyDictionary()  # in batches of graphs

    def entered(
        self, call: Call, contents: ModuleContents, rows: int | None, is_inner: bool, items: int | None
    ) -> tuple[Call, LocalArgs | None, SplitDecision | None]:
        """Give a call as it is carried out, how its arguments are cut, and the decision if it is like the last one.

        Args:
            call: of some module.
            contents: of the module.
            rows: as for ``cut``.
            is_inner: a forward makes it that runs as written, not the script.
            items: as for ``cut``.
        """
        if not is_inner:
            if (found := usual(call, contents, self.fingerprints)) is not None:
                return call, *found
            call = self.dimensions.as_dealt(call)
        return call, self.cut(call, rows, not is_inner, items), None

    def cut(self, call: Call, rows: int | None, is_scripts: bool, items: int | None = None) -> LocalArgs | None:
        """Cut a call's arguments to this rank's rows; None if nothing in them is a batch.

        Args:
            call: of the script.
            rows: size of the batch the script is working on, as far as it is known.
            is_scripts: the script makes the call, not a module that runs as written.
            items: if that module is given lists with an entry for each row, how many entries.
        """
        memory = self._memory.setdefault(call.module, {})
        dim = self.dimensions.of(call.module) if call.dim is None else call.dim
        is_named = call.dim is not None
        local = local_arguments(
            call, rows, self._batch_dims, memory, dim, is_named, is_scripts, items, lambda: self._roles_of(call.module)
        )
        if is_scripts and local is not None and not local.is_of_batches_alone:
            self._world.dealt.note(dealt_tensors(call, local))
        return local

    def _roles_of(self, module: nn.Module) -> Roles:
        return self._roles.setdefault(module, Roles())

    def close(self) -> None:
        """Let go of it, and of what arguments were."""
        super().close()
        self._memory.clear()
        self._roles.clear()
        self.dimensions.close()

    def _only_calculates(self, call: Call, seen: list[bool]) -> bool:
        """Tell whether a function does, on all ranks, and nothing in reach of it tells its numbers from others."""
        codes = self.fingerprints.guards(call.module).codes
        return all(seen) and not any("type" in names_in(code).mentioned for code in codes)

    def _with_values(self, call: Call, local: LocalArgs) -> CallForm:
        """Tell the values of a function's numbers apart from now on."""
        forms = self._of(call.module)
        forms.looks_at_numbers = True
        forms.entries.clear()
        return self.form(call, local, self._census.of(call.module))

    def first_call(self, call: Call, local: LocalArgs, form: CallForm, rows: int | None) -> FirstCall:
        """Compute a call of a new form on batches if that can be done, and give the decision on its form."""
        forms = self._of(call.module)
        if forms.is_passed_over:  # neither tried nor remembered
            what, changed = forms.difference(form)
            what, advice = what or self.fingerprints.changed_last(call.module), "A tensor may change: torch.tensor(0.5)"
            if isinstance(changed, tuple) and isinstance(changed[0], type) and changed[0] not in PLAIN:
                what, advice = f"{what}, a {changed[0].__name__},", "Give it the tensors that this holds"
            why = f"{what} changes from call to call. {advice}"
            how = CallMode.WHOLE if forms.has_failed_on_batches else CallMode.BATCHES
            tells = bool(forms.entries) and all(one.decision.tells_batch_sizes for one in forms.entries.values())
            decision = forms.decision_when_passed_over = SplitDecision(how, why, tells_batch_sizes=tells)
            if how is CallMode.BATCHES:
                self._world.ledger.on_batches.setdefault(described(call.module), why)
            return FirstCall(False, None, local, decision)
        if call.gathers_scalars:
            return self._decide_by_few_rows(call, local, rows)
        if local.graphs is not None:
            return self._decide_on_graphs(call, local, local.graphs, rows, form)
        stored = forms.entries.get(form)  # for other sizes
        is_to_be_tried = stored is None or (stored.is_size_dependent and size_key(local) not in stored.totals)
        layers = self._census.of(call.module).layers
        observed = ObservedCall(self._world, self.fingerprints, call, local, layers, is_to_be_tried)
        work = WorkCounter()  # type: ignore[no-untyped-call]
        try:
            result = observed.run(work if local.holds_dealt_tensors else nullcontext())
        except Exception as error:
            if not is_of_batches(error, observed.seen):
                raise
            if is_of_machine(error):  # on some ranks only, perhaps
                self._world.check_all_failed(error, f"the first call of {described(call.module)}")
            # Batches are refused, or what nothing is known of got too many rows. Rows may do, or it is raised again.
            error.__traceback__ = error.__context__ = None  # which keep activations
            forms.has_failed_on_batches = True
            tries_all = not is_of_machine(error)  # of which there may be too many
            return self._decide_by_few_rows(call, local, rows, CallMode.WHOLE, observed.before, tries_all)
        # It bound something outside anew, as a first call may: the next one of this form is looked at once more.
        has_rebound = observed.has_rebound(form, self._census.of(call.module)) and form not in forms.rebound
        # On every rank or on none: a trial may need all of them.
        seen = observed.seen
        told = self._world.share([[seen.why_not_split, has_rebound, seen.gathers_what_it_made, seen.only_calculates]])
        answers = [answer[0] for answer in told]
        why_not_split = next((reason for reason, *_ in answers if reason is not None), None)
        if self._takes_any_number(call) and not self._only_calculates(call, [calculates for *_, calculates in answers]):
            form = self._with_values(call, local)
        if why_not_split is not None:
            decision = SplitDecision(CallMode.BATCHES, why_not_split)
        else:
            decision = observed.tried() if stored is None or is_to_be_tried else observed.as_tried(stored.decision)
        with muted(self._world):  # each rank for itself
            decision = completed_by(observed.outputs, local, decision, seen)
        decision = agreed(self._world, decision)
        decision = dataclasses.replace(decision, tells_batch_sizes=not any(gathers for *_, gathers, _ in answers))
        if decision.mode is not CallMode.ROWS and local.assumed_dims:
            self._memory[call.module].update(dict.fromkeys(local.assumed_dims))
        elif any(has_rebound for _, has_rebound, *_ in answers):
            forms.rebound.add(form)
        else:
            self._store(call, form, decision, local, seen.is_size_dependent)
        if local.holds_dealt_tensors and call.dim is None:
            with observed.as_given():
                again = dataclasses.replace(call)
                entries = sum(leaf.numel() for _, leaf in again.leaves if isinstance(leaf, torch.Tensor))
                by_number = work.done / max(1, entries)
                self.dimensions.note_work(call.module, local, decision, by_number, lambda: self.cut(again, rows, True))
        return FirstCall(True, result, local, decision)

    def _decide_by_few_rows(
        self,
        call: Call,
        local: LocalArgs,
        rows: int | None,
        otherwise: CallMode = CallMode.BATCHES,
        before: Any = None,
        tries_all: bool = False,
    ) -> FirstCall:
        """Give the decision on a few rows against half of them, tried on copies, and how the call is entered.

        Args:
            call: that cannot be observed on batches.
            local: how its arguments are cut.
            rows: size of the batch the script is working on, as far as it is known.
            otherwise: how it is carried out if not on rows.
            before: what stood before a call that failed.
            tries_all: all rows are tried as well, against this rank's.
        """
        contents = self._census.of(call.module)
        if self._takes_any_number(call):
            self._with_values(call, local)
        trial = Unobserved(self._world, self.fingerprints, call, contents, otherwise, before, tries_all)
        decision = trial.decide(local)
        if decision.mode is not CallMode.ROWS and local.assumed_dims:
            self._memory[call.module].update(dict.fromkeys(local.assumed_dims))
            again = self.cut(call, rows, is_scripts=local.holds_dealt_tensors)
            assert again is not None
            local, decision = again, trial.decide(again)
        form = self.form(call, local, contents)
        if decision.is_size_dependent:
            self._store(call, form, decision, local, is_size_dependent=True)
            return FirstCall(False, None, local, decision)
        self._of(call.module).entries[form] = Form(decision, {}, holds_for_all_sizes=True)
        if decision.mode is not CallMode.ROWS:
            self._report_not_split(call.module, decision)
        return FirstCall(False, None, local, decision)

    def _decide_on_graphs(
        self, call: Call, local: LocalArgs, graphs: Graphs, rows: int | None, form: CallForm
    ) -> FirstCall:
        """Deal a call's graphs if they may be computed apart; otherwise its tensors, whatever they are."""
        contents = self._census.of(call.module)
        decision = Unobserved(self._world, self.fingerprints, call, contents, CallMode.BATCHES, None).by_graphs(graphs)
        if decision.mode is CallMode.ROWS:
            self._world.ledger.note(f"{described(call.module)}: its batches of graphs were dealt graph by graph")
            self._store(call, form, decision, local, is_size_dependent=True)
            return FirstCall(False, None, local, decision)
        self._roles_of(call.module).refused.add(call.module.training)
        self._report_not_split(call.module, decision)
        again = self.cut(call, rows, is_scripts=True)
        if again is None:
            return FirstCall(False, None, local, dataclasses.replace(decision, mode=CallMode.WHOLE))
        return self.first_call(call, again, self.form(call, again, contents), rows)
