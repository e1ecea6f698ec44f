"""The models of a script under torch's DDP, found as their author calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..batch.transforms import fake_mode, proxy_mode
from ..batch.world import World
from ..calling import compiled
from ..calling.calls import Call
from ..calling.passed_over import is_tracing
from ..calling.redirects import Redirects, is_of_one_rank
from ..gradients.conversions import Conversions
from ..gradients.pending_gradients import PendingGradients
from ..gradients.tuning import Tuning
from ..job.job import Job
from ..options import Options
from ..replica.trained import Trained
from .beside import Beside
from .maker import Maker
from .meeting import meet
from .statistics import Statistics
from .synced import Synced, ids_of, refuse_step
from .weights import Weights


class LocalModels:
    """Puts each outermost module that the script trains under one DDP, and keeps its gradients those of all ranks."""

    def __init__(self, options: Options, job: Job, world: World) -> None:
        """Start without any."""
        self.watching = False  # every module call is looked at
        self.watch: Callable[[], None] = lambda: None  # begins to do so
        self.rest: Callable[[], None] = lambda: None  # ends it
        self.pending_gradients = PendingGradients()
        self.inside = False  # a call of a model, now
        self.in_backward = False
        self.weights = Weights(options.tail == "exact")
        self.ids: set[int] = set()  # of the parameters of models under DDP that are trained
        self._all_ids: set[int] = set()  # of all of theirs
        self.collective_calls = 0  # forwards under DDP, and backwards, which all ranks have
        self.calls_before_step = 0  # likewise, when the last step of an optimizer began
        self.optimizers = 0  # that were made
        self._world = world
        self._rank_status = job.rank_status
        self._synced: dict[int, Synced] = {}
        self._conversions = Conversions(self._converted)
        self._redirects = Redirects(self._called)
        self.trained = Trained()
        self.statistics = Statistics(self.trained, self.modules)
        self._beside = Beside(world)
        self.tuning = Tuning(options, world, compiled.is_used)
        self._maker = Maker(options, job, world, self.tuning)

    # --- optimizers -------------------------------------------------------------------------------------------------

    def optimizes(self, optimizer: Any) -> None:
        """Remember an optimizer: what it trains is what has to be found."""
        self.optimizers += not self.trained.knows(optimizer)
        self.trained.add(optimizer)
        self._beside.parameters = None

    def before_step(self, optimizer: Any, is_outermost: bool) -> None:
        """An optimizer is about to step: what it reads must be of all ranks. What others read may go on waiting.

        Args:
            optimizer: that is.
            is_outermost: inside of no other's step.
        """
        if self.in_backward:
            refuse_step(optimizer)
        # One without parameters knows by other ways what it trains.
        one = len(self._synced) == 1 and not self._beside.has_pending_gradients
        read = None if one else ids_of(optimizer) or (None if is_outermost else set())
        for synced in self._synced.values():
            synced.check()
            if read is None or not read.isdisjoint(synced.ids):
                if synced.has_pending_gradients:
                    self.pending_gradients.make_global(synced)
                synced.schedule.step()
        self.calls_before_step = self.collective_calls
        if self._beside.has_pending_gradients and (read is None or not read.isdisjoint(self._beside.ids)):
            self.pending_gradients.make_global(self._beside)

    def is_at_work(self) -> bool:
        """Tell whether a forward under DDP or a backward is on its way."""
        return self.inside or self.in_backward

    def averages(self, tensor: Any) -> bool:
        """Tell whether its gradients are those of all ranks."""
        return id(tensor) in self.ids or id(tensor) in self.trained.ids()

    def after_step(self, optimizer: Any) -> None:
        """A step ended; the backwards of its closure were each looked at."""
        read = ids_of(optimizer)
        for synced in self._synced.values():
            if not read.isdisjoint(synced.ids):
                synced.schedule.forget_cycle()

    def modules(self) -> list[nn.Module]:
        """Give those under DDP."""
        return [synced.module for synced in self._synced.values()]

    def has_found_all(self) -> bool:
        """Tell whether the models under DDP hold all that optimizers train."""
        return bool(optimized := self.trained.ids()) and optimized <= self._all_ids

    # --- calls ------------------------------------------------------------------------------------------------------

    def found(self, call: Call) -> bool:
        """Tell whether a module call should be taken over: an owner of optimized parameters, as the script calls it."""
        if self.inside or self.in_backward or id(call.module) in self._synced or is_tracing():
            return False
        wanted = {id(parameter) for parameter in call.module.parameters() if parameter.requires_grad}
        if self.trained.ids().isdisjoint(wanted) or is_of_one_rank(self._world, call.module):
            return False
        # A method of a model beside its forward calls parts of it.
        return not wanted <= self.ids or any(id(child) in self._synced for child in call.module.modules())

    def call(self, call: Call) -> Any:
        """Take a module over, and carry out its call."""
        self._make(call.module)
        if self.has_found_all():
            self.rest()
        return self._called(call.module, call.run, call.args, call.kwargs)

    def _called(self, module: nn.Module, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        synced = self._synced.get(id(module))
        is_apart = World.current is not self._world or self._world.fetching.get()
        is_own = is_apart and is_of_one_rank(self._world, module)
        if is_own or self.inside or self.in_backward or synced is None or is_tracing() or fake_mode() or proxy_mode():
            return run(*args, **kwargs)
        self.inside = True
        try:
            if not torch.is_grad_enabled():
                return run(*args, **kwargs)
            if synced.is_stale:
                self._drop(synced)
                synced = self._keep(self._maker.anew(synced))
            if synced.ddp is None:
                return run(*args, **kwargs)
            if self.tuning.is_on:
                self._maker.try_out(synced)
            self.collective_calls += 1
            # In its second forward DDP exchanges its buckets' order.
            outputs = meet(self._world, self._rank_status, "a forward under DDP", synced.forward, (args, kwargs), {})
            return self.weights.mark(outputs) if self.weights.is_used else outputs
        finally:
            self.inside = False

    def _converted(self, parameter: nn.Parameter) -> None:
        for synced in self._synced.values():
            synced.is_stale = synced.is_stale or (synced.ddp is not None and id(parameter) in synced.ids)

    def _make(self, module: nn.Module) -> None:
        self._conversions.start()
        inner = {id(child) for child in module.modules()}
        for key in [key for key in self._synced if key in inner]:
            self._drop(self._synced.pop(key))
        self._retire()
        self._keep(self._maker.make(module))
        self._beside.parameters = None
        self._redirects.add(module)

    def _retire(self) -> None:
        """Let go of what no optimizer trains any more, on no rank: models of folds and trials that are over."""
        if not self._synced:
            return
        trained = self.trained.of_living()
        untrained = [synced.ids.isdisjoint(trained) for synced in self._synced.values()]
        # An optimizer in a cycle goes when the garbage collector of a rank comes by.
        of_ranks = [values[0] for values in self._world.share([untrained])]
        for key, flags in zip(list(self._synced), zip(*of_ranks, strict=True), strict=True):
            if all(flags):
                self._drop(self._synced.pop(key))

    def _keep(self, synced: Synced) -> Synced:
        self._synced[id(synced.module)] = synced
        self.ids = {key for its in self._synced.values() for key in its.ids}
        self._all_ids = {id(parameter) for module in self.modules() for parameter in module.parameters()}
        self.statistics.forget()
        return synced

    def renew(self) -> None:
        """Put modules under a new DDP whose trained parameters are others by now."""
        for synced in [synced for synced in self._synced.values() if not synced.fits()]:
            if any(parameter.requires_grad for parameter in synced.module.parameters()):
                self._make(synced.module)
        self._maker.send_buffers(self._synced.values())
        if self._synced and not (self.has_found_all() or self._beside.is_rest(self.trained, self._all_ids)):
            self.watch()
        elif self.watching and self._synced:
            self.rest()

    # --- backwards --------------------------------------------------------------------------------------------------

    def backward(self, run: Callable[..., None], args: Any, kwargs: Any) -> None:
        """Run a backward of the script; one inside another belongs to it."""
        if self.in_backward:
            run(*args, **kwargs)
            return
        if self.weights.is_used:
            args, kwargs = self.weights.weigh(args, kwargs)
        self.in_backward = self.weights.is_backward = True
        for synced in self._synced.values():
            synced.begin()
        if self.tuning.is_on:
            self.tuning.begin()
        try:
            meet(self._world, self._rank_status, "a backward", run, args, kwargs)
        finally:
            self.in_backward = self.weights.is_backward = False
        self.collective_calls += 1
        for synced in self._synced.values():
            synced.ended()
            if synced.has_pending_gradients or self.pending_gradients.waiting:
                self.pending_gradients.note(synced)
        beside = self._beside
        if (beside.parameters != [] or beside.has_pending_gradients) and beside.ended(self.trained, self.ids):
            self.pending_gradients.note(beside)
        if self.tuning.is_on:
            self.tuning.end()

    # --- the end ----------------------------------------------------------------------------------------------------

    def close(self, make_global: bool) -> None:
        """Give every module its class back and let DDP go.

        Args:
            make_global: the script goes on, so its gradients are averaged; no collective otherwise.
        """
        for synced in self._synced.values():
            self._drop(synced, make_global)
        for collection in (self._synced, self.ids, self._all_ids):
            collection.clear()
        self._conversions.stop()
        if make_global:
            self.pending_gradients.make_global(self._beside)
        self.pending_gradients.close()
        self._redirects.close()

    def _drop(self, synced: Synced, make_global: bool = True) -> None:
        if make_global:
            self.pending_gradients.make_global(synced)
        synced.has_pending_gradients, synced.ddp = False, None  # alive at exit, it aborts the process (torch 2.13)
        self.pending_gradients.note(synced)
