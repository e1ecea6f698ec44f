"""Deciding on a call that cannot be observed on batches: copies are tried on a few rows, and on half of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ..batch.row_numbers import RowRuns
from ..batch.wholes import whole_arguments
from ..batch.world import World
from ..calling.call_mode import CallMode
from ..calling.calls import Call
from ..calling.census import ModuleContents
from ..calling.graph_units import AnyRows
from ..calling.graphs import Graphs
from ..calling.local_arguments import LocalArgs
from ..calling.rows import Arguments, as_batches, detached, first_rows
from .agreed import agreed, muted
from .fingerprint import Fingerprints
from .graph_trials import GraphTrials
from .guards import MORE_THAN_WATCHED
from .observing import OTHER_ROWS, of_few_rows, untouched
from .state_snapshot import StateSnapshot
from .trial_run import is_of_machine
from .trial_verdict import WRITES_TO_GRAPHS, SplitDecision, decide_by_trial

_ROWS_TRIED = 4


class Unobserved:
    """Tries a call on copies of its module."""

    def __init__(
        self,
        world: World,
        fingerprints: Fingerprints,
        call: Call,
        contents: ModuleContents,
        otherwise: CallMode,
        before: StateSnapshot | None,
        tries_all: bool = False,
    ) -> None:
        """Try nothing yet.

        Args:
            world: the ranks.
            fingerprints: of modules.
            call: that cannot be observed.
            contents: of its module.
            otherwise: how it is carried out if not on rows.
            before: what stood before a call that failed.
            tries_all: a few rows are not enough: the call did fail, and may tie more of them together.
        """
        self._tries_all = tries_all
        self._world = world
        self._fingerprints = fingerprints
        self._call = call
        self._contents = contents
        self._otherwise = otherwise
        self._before = before

    def decide(self, local_args: LocalArgs) -> SplitDecision:
        """Decide how the call is carried out. Every rank comes here.

        Args:
            local_args: how its arguments are cut.
        """
        most = max(2, min(*local_args.layout.counts, _ROWS_TRIED))
        arguments = as_batches(self._call.args, self._call.kwargs, local_args)
        with muted(self._world):
            whole, part = first_rows(*arguments, most), first_rows(*arguments, most // 2)
        _, local = self._tried(whole, part, RowRuns(((0, most // 2),), most))
        decision = agreed(self._world, local)
        is_enough = not (self._tries_all or decision.is_size_dependent) and local_args.layout.is_consecutive
        if decision.mode is CallMode.ROWS and not is_enough:
            decision = self._of_its_size(arguments, local_args, decision)
            return dataclasses.replace(decision, is_size_dependent=decision.mode is CallMode.ROWS)
        return decision

    def by_graphs(self, graphs: Graphs) -> SplitDecision:
        """Decide how a call with a batch of graphs is carried out: by a few, and by all. Every rank comes here."""
        self._fingerprints.of(self._call.module, self._contents)
        guards = self._fingerprints.guards(self._call.module)
        if guards.is_endless or guards.is_truncated:
            return SplitDecision(CallMode.BATCHES, ". ".join(MORE_THAN_WATCHED))
        trials = GraphTrials(graphs)
        few = (self._tried(*trial)[1] for trial in trials.of_few())
        local: SplitDecision | None = None
        for decision in few:
            if local is not None and decision.mode is CallMode.ROWS and decision.dims != local.dims:
                decision = SplitDecision(CallMode.BATCHES, OTHER_ROWS)
            local = decision
            if local.mode is not CallMode.ROWS:
                break
        assert local is not None
        decision = agreed(self._world, local)
        if decision.mode is not CallMode.ROWS:
            return decision
        decision = self._by_all(lambda: trials.of_all(self._world.rank), decision)
        if any(wrote for ((wrote,),) in self._world.share([[trials.were_written_to()]])):
            return SplitDecision(CallMode.BATCHES, WRITES_TO_GRAPHS)
        return decision

    def _of_its_size(self, arguments: Arguments, local_args: LocalArgs, decision: SplitDecision) -> SplitDecision:
        """Try all rows against this rank's.

        A few rows are on one side of what a forward compares their number with, and are neighbours.
        """
        with muted(self._world):
            whole = whole_arguments(*arguments)
        rows = local_args.layout.rows(self._world.rank)
        return self._by_all(lambda: (whole, detached((local_args.args, local_args.kwargs)), rows), decision)

    def _by_all(
        self, given: Callable[[], tuple[Arguments, Arguments, AnyRows]], decision: SplitDecision
    ) -> SplitDecision:
        try:
            how, local = self._tried(*given())
        except Exception as error:
            if not is_of_machine(error):
                raise
            how = CallMode.WHOLE
        # All rows may be more than this rank has room for, or than the forward takes.
        return agreed(self._world, decision if how is CallMode.WHOLE else local)

    def _tried(self, whole: Arguments, part: Arguments, rows: AnyRows) -> tuple[CallMode, SplitDecision]:
        """Give what a trial says, and the decision that it leads to."""
        self._fingerprints.of(self._call.module, self._contents)  # as the call has left it that failed
        guards = self._fingerprints.guards(self._call.module)
        before = guards.noted(self._call.leaves)
        generators = self._fingerprints.generators(self._call)
        with muted(self._world), untouched(self._contents.layers):
            decision = decide_by_trial(
                self._call.module, whole, part, rows, gathers_scalars=self._call.gathers_scalars, generators=generators
            )
        return decision.mode, of_few_rows(decision, guards, before, self._otherwise, self._before or before)
