"""How a model's calls are carried out: on rows, on batches, on the whole, or as the script wrote them.

The outermost module that the script trains gets a replica, which keeps the gradients of everything inside it global,
however its forward runs. Where that forward ties rows together it runs on batches, and the modules that it calls are
looked at in turn, down to those whose rows are independent: these compute rows, and need no replica of their own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..batch.world import World
from ..calling import compiled, module_hooks
from ..calling.call_mode import CallMode
from ..calling.call_mode_replay import CallModeReplay
from ..calling.calls import Call, described
from ..calling.census import Census, ModuleContents
from ..calling.local_arguments import LocalArgs
from ..calling.passed_over import is_passed_over, is_under_transform
from ..calling.per_rank_generators import PerRankGenerators
from ..calling.redirects import Redirects, is_of_one_rank
from ..deciding.call_forms import CallForm, FirstCall
from ..deciding.decisions import SplitDecisions
from ..deciding.trial_verdict import SplitDecision
from ..errors import DdpPatchError
from ..gradients.backward_passes import BackwardPasses
from ..gradients.tuning import Tuning
from ..job.job import Job
from ..options import Options
from .forwards import REQUIRES_FULLGRAPH, Forwards
from .registry import Registry
from .replica import Replica
from .shares import WorkShares
from .trained import Trained

_SEEN_ELSEWHERE = SplitDecision(CallMode.ROWS, "it was computed on rows before")


class Replicas:
    """Decides how each module call is carried out."""

    def __init__(self, options: Options, job: Job, world: World) -> None:
        """Start without any replica."""
        self.rows: int | None = None  # size of the batch the script is working on
        self.discovering = True  # False once the script uses nn.DataParallel: it says itself what to distribute
        self.generators = PerRankGenerators(world.rank, world.device)
        self.backwards = BackwardPasses(world, job.one_process, Tuning(options, world, compiled.is_used))
        self.hooks, self.census = module_hooks.HookCensus(), Census()
        self.decisions = SplitDecisions(world, options.batch_dims, self.census)
        self.replay = CallModeReplay()
        noted = self.decisions.fingerprints.noted
        self.forwards = Forwards(world, self.generators, self.replay, noted, options.sync_batchnorm)
        self._shares = WorkShares(world, self.forwards) if options.report else None
        self.watching = False  # every module call is looked at
        self.watch: Callable[[], None] = lambda: None  # begins to do so
        self.rest: Callable[[], None] = lambda: None  # ends it
        self._job, self._world = job, world
        knowing, self.trained = (self.census, self.hooks, self.decisions.fingerprints), Trained()
        self.registry = Registry(options, job, world, self.backwards, self.census, self.trained, knowing)
        self.backwards.when_stepped = self._stepped
        self._redirects = Redirects(self._called)
        # Those called with batches of different sizes, or lists of rows, in training and not.
        self._uncut: weakref.WeakValueDictionary[tuple[int, bool], nn.Module] = weakref.WeakValueDictionary()
        if job.precision.dtype is torch.float16:
            job.precision.when_applied = self.backwards.loss_scale.activate
        self._news = False  # something was found out in this call, so what it calls may be looked at next time

    def optimizes(self, optimizer: Any) -> None:
        """Remember an optimizer: what it trains is what has to be found."""
        self.trained.add(optimizer)
        self.registry.trains(optimizer)
        self.backwards.forget_param_groups(optimizer)

    def _stepped(self, optimizer: Any) -> None:
        if self.watching:
            self.trained.stepped(optimizer, self.registry.ids())
            self._watch_or_rest()

    def _watch_or_rest(self) -> None:
        """Watch module calls while something was found out, and no more once all models are found."""
        self._world.dealt.settle()
        if self._news:
            self.watch()
        elif self.watching and not self._job.precision.is_requested and self.trained.are_all_in(self.registry.ids()):
            self.rest()

    def found(self, call: Call) -> bool:
        """Tell whether a module call should be taken over: an owner of optimized parameters, on a batch."""
        is_inner = self.forwards.intercept_depth > 0
        if self.forwards.is_bypassed or call.module in self._redirects or not (self.discovering or is_inner):
            return False
        if not call.holds_tensors:
            return False
        is_hooked = is_inner and self.hooks.need_whole(call.module)
        if not is_hooked and is_passed_over(call, is_inner, self.forwards.items or (self.rows if is_inner else None)):
            return False
        is_owner = not self.trained.ids().isdisjoint(map(id, call.module.parameters()))
        return (is_owner or is_hooked) and not is_under_transform() and not is_of_one_rank(self._world, call.module)

    def is_at_work(self) -> bool:
        """Tell whether a call is part of a model's, of a backward, or of what is traced."""
        return self.forwards.is_in_call or self.backwards.is_busy or self.replay.is_on or is_under_transform()

    def call(self, call: Call) -> Any:
        """Carry out the call of a module."""
        self._world.one_thread.begins()
        return call.as_written() if self.forwards.is_bypassed else self._carry_out(call)

    def _carry_out(self, call: Call) -> Any:
        if is_under_transform() or (self.backwards.is_busy and not self.replay.is_on):
            return call.as_written()
        if self.forwards.intercept_depth:
            return self._between_hooks(call.with_numbers())
        self._news = False
        try:
            return self._job.precision.applied(self._between_hooks, call)
        finally:
            self._watch_or_rest()

    def _between_hooks(self, call: Call) -> Any:
        if not self.hooks.any_on(call.module):
            return self._call(call)
        is_whole = self.hooks.need_whole(call.module)
        self._world.looks_at_gradients |= is_whole or not module_hooks.only_captures(call.module)
        self._look_at(call.module)  # its forward may call it
        if is_whole:
            self._world.ledger.on_whole[described(call.module)] = "hooks on all modules, or of register_backward_hook"
            return self.forwards.on_whole(call)
        return self.hooks.around(call, self._call, "force_eager" if self.forwards.intercept_depth else "default")

    def _call(self, call: Call) -> Any:
        contents, is_inner = self.census.of(call.module), self.forwards.intercept_depth > 0
        call, local, decision = self.decisions.entered(call, contents, self.rows, is_inner, self.forwards.items)
        if local is None:
            return self.forwards.on_whole(call) if self._shares is None else self._shares.without_batch(call)
        if contents.is_substituted:
            self._world.ledger.note(f"{described(call.module)}: functional_call computes the whole batch")
            return self.forwards.on_whole(call)
        if is_inner:
            return self._run(call, local, contents, None)[0]
        if contents.is_empty():
            self._world.ledger.on_whole[described(call.module)] = "parameters that hold no numbers yet: lazy or meta"
            return self.forwards.on_whole(call)
        replica = self.registry.keeping(call.module) or self.registry.make(call.module)
        contents.is_looked_at = contents.is_looked_at or self._look_at(call.module)
        replica.prepare(contents if replica.module is call.module else self.census.of(replica.module))
        if self._shares is None:
            result, is_hooked = self._run(call, local, contents, replica, decision)
        else:
            with self._shares.counted(call.module, local.layout, lambda: self._news):
                result, is_hooked = self._run(call, local, contents, replica, decision)
        return result if is_hooked else replica.hook_outputs(result, call.leaves)

    def _run(
        self, call: Call, local: LocalArgs, contents: ModuleContents, replica: Replica | None, decision: Any = None
    ) -> tuple[Any, bool]:
        """Compute a call, and tell whether what comes out has the replica's hooks."""
        if self.hooks.inside(call.module, contents):
            self._world.looks_at_gradients |= self.hooks.look_at_gradients(call.module, contents)
            self._world.ledger.on_batches[described(call.module)] = "a module inside it has hooks, which see batches"
            self._news = self._news or self.hooks.is_new(call.module, contents)
            return self.forwards.on_batches_with_interception(call, local), False
        if reason := local.why_uncut:
            key = id(call.module), call.module.training
            self._news = self._news or key not in self._uncut
            self._uncut[key] = call.module
            self._world.ledger.on_batches[described(call.module)] = reason
            if local.ambiguity:  # which a later call may tell, before this one is computed again
                self.replay.pass_by(call.module, CallMode.BATCHES)
            return self.forwards.on_batches_with_interception(call, local), False
        form: Any = None
        if decision is None:
            form, decision = self.decisions.looked_up(call, local, contents, replica is not None)
        how, recorded = self.replay.next_mode_of(call.module) if self.replay.is_on else (None, None)
        if is_first := how is None and decision is None:
            first = self._first(call, local, form)
            if first.has_run:
                return first.result, False
            local, decision = first.local_args, first.decision
        how = how or decision.mode
        decision = recorded or decision  # what its forward branches on may have changed since
        self.replay.record(call.module, how, decision)
        if how is CallMode.WHOLE:
            try:
                return self.forwards.on_whole(call, is_first), False
            except Exception:
                if is_first:  # the script's own error; with other sizes rows may do
                    self.decisions.forget(call, form)
                raise
        if how is CallMode.BATCHES:
            return self.forwards.on_batches_with_interception(call, local, decision), False
        if how is CallMode.OBSERVED:
            with self.forwards.without_interception(), compiled.stance("force_eager"):
                return self.forwards.on_batches(call, local, tells_sizes=True), False
        result = self.forwards.on_rows(call, local, decision or _SEEN_ELSEWHERE, contents, replica)
        if result is not REQUIRES_FULLGRAPH:
            return result, not call.gathers_scalars
        form = form or self.decisions.form(call, local, contents)
        self.decisions.withdraw(call, form, "torch.compile(fullgraph=True) lets no ranks meet in its forward")
        return self.forwards.on_batches_with_interception(call, local), False

    def _first(self, call: Call, local: LocalArgs, form: CallForm) -> FirstCall:
        self._news = True
        self.forwards.call_count += 1
        try:
            with self.forwards.without_interception(), self._world.telling_batch_sizes(False):  # but what is observed
                first = self.decisions.first_call(call, local, form, self.rows)
        except DdpPatchError:
            raise
        except Exception as error:
            self._world.check_all_failed(error, f"call {self.forwards.call_count} of {described(call.module)}")
            raise
        if first.decision.mode is CallMode.ROWS:
            self._look_at(call.module)
        if first.has_run:
            if first.decision.mode is CallMode.ROWS:
                self._world.ledger.rows[first.local_args.layout.counts[self._world.rank]] += 1
            self.replay.record(call.module, CallMode.OBSERVED)
        return first

    def _look_at(self, module: nn.Module) -> bool:
        """Have a module's calls come here by themselves, whether or not all calls are watched."""
        if module not in self._redirects:
            self._redirects.add(module)
            self.decisions.fingerprints.reclassed(module)
        return True

    def _called(self, module: nn.Module, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if is_of_one_rank(self._world, module):
            return run(*args, **kwargs)
        self._world.one_thread.begins()  # before another thread takes this one's forward for its own
        if not self.forwards.is_bypassed:
            return self._carry_out(Call(module, run, args, kwargs))
        with self.hooks.again(module):
            return run(*args, **kwargs)

    def close(self, make_global: bool) -> None:
        """Give every module its class back and let DDP go.

        Args:
            make_global: the script goes on, so its gradients are made global; no collective otherwise.
        """
        self.registry.close(make_global)
        for part in (self._redirects, self.decisions, self.census, self.hooks):
            part.close()
