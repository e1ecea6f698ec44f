"""The models of a script under torch's DDP, found as their author calls them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..batch.world import World
from ..calling import compiled, swap
from ..calling.calls import Call, described
from ..calling.passed_over import is_traced
from ..errors import DdpPatchError
from ..gradients.conversions import Conversions
from ..gradients.tuning import Tuning
from ..gradients.unsettled import Unsettled
from ..job.job import Job
from ..options import Options
from ..replica.trained import Trained
from .beside import Beside
from .maker import Maker
from .synced import Synced, explain
from .weights import Weights

_WHY = "outermost owner of optimized parameters; under torch's DDP, on this rank's rows"


class Models:
    """Puts each outermost module that the script trains under one DDP, and keeps its gradients those of all ranks."""

    def __init__(self, options: Options, job: Job, world: World) -> None:
        """Start without any."""
        self.watching = False  # every module call is looked at
        self.watch: Callable[[], None] = lambda: None  # begins to do so
        self.rest: Callable[[], None] = lambda: None  # ends it
        self.unsettled = Unsettled()
        self.inside = False  # a call of a model, now
        self.in_backward = False
        self.weights = Weights(options.tail == "exact")
        # Running means that were looked for among the models, by identity, and whether they are of one.
        self._statistics: dict[int, tuple[weakref.ref[Any], bool]] = {}
        self.ids: set[int] = set()  # of the parameters of models under DDP
        self.met = 0  # forwards under DDP, and backwards, which all ranks have
        self.met_before_step = 0  # likewise, when the last step of an optimizer began
        self.optimizers = 0  # that were made
        self._world = world
        self._attendance = job.attendance
        self._synced: dict[int, Synced] = {}
        self._conversions = Conversions(self._converted)
        # Modules whose calls come here by themselves, by identity.
        self._looked_at: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()
        self._trained = Trained()
        self._beside = Beside(world)
        self.tuning = Tuning(options, world, compiled.is_used)
        self._maker = Maker(options, job, world, self.tuning)

    # --- optimizers -------------------------------------------------------------------------------------------------

    def optimizes(self, optimizer: Any) -> None:
        """Remember an optimizer: what it trains is what has to be found."""
        self.optimizers += not self._trained.knows(optimizer)
        self._trained.add(optimizer)
        self._beside.parameters = None

    def rates(self) -> list[float]:
        """Give the learning rates of every optimizer's groups."""
        return self._trained.rates()

    def before_step(self) -> None:
        """An optimizer is about to step: what it reads must be of all ranks."""
        for synced in self._synced.values():
            synced.check()
            if synced.pending:
                self.unsettled.settle(synced)
            synced.schedule.step()
        self.met_before_step = self.met
        if self._beside.pending:
            self.unsettled.settle(self._beside)

    def are_trained(self) -> bool:
        """Tell whether there is an optimizer."""
        return bool(self._trained.ids())

    def after_step(self) -> None:
        """A step ended; the backwards of its closure, if it has one, were each looked at."""
        for synced in self._synced.values():
            synced.schedule.forget_cycle()

    def modules(self) -> list[nn.Module]:
        """Give those under DDP."""
        return [synced.module for synced in self._synced.values()]

    def normalizes(self, running_mean: Any, weight: Any) -> bool:
        """Tell whether a BatchNorm is of what the script trains, also where it is called past its model's call.

        A method beside ``forward`` does so, and a checkpoint that computes again in a backward.

        Args:
            running_mean: its own; None where it keeps none.
            weight: likewise.
        """
        if self.inside or (weight is not None and id(weight) in self._trained.ids()):
            return True
        if running_mean is None:
            return False
        known = self._statistics.get(id(running_mean))
        if known is None or known[0]() is not running_mean:
            layers = (layer for synced in self._synced.values() for layer in synced.module.modules())
            is_own = any(vars(its)["_buffers"].get("running_mean") is running_mean for its in layers)
            known = self._statistics[id(running_mean)] = weakref.ref(running_mean), is_own
        return known[1]

    def _everything_found(self) -> bool:
        optimized = self._trained.ids()
        return bool(optimized) and optimized <= self.ids

    # --- calls ------------------------------------------------------------------------------------------------------

    def found(self, call: Call) -> bool:
        """Tell whether a module call should be taken over: an owner of optimized parameters, as the script calls it."""
        if self.inside or self.in_backward or id(call.module) in self._synced or is_traced():
            return False
        optimized = self._trained.ids()
        wanted = [id(parameter) for parameter in call.module.parameters() if parameter.requires_grad]
        return not optimized.isdisjoint(wanted)

    def call(self, call: Call) -> Any:
        """Take a module over, and carry out its call."""
        self._make(call.module)
        if self._everything_found():
            self.rest()
        return self._called(call.module, call.run, call.args, call.kwargs)

    def _called(self, module: nn.Module, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        synced = self._synced.get(id(module))
        if self.inside or self.in_backward or synced is None or is_traced():
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
            self.met += 1
            # In its second forward DDP exchanges its buckets' order.
            outputs = self._met("a forward under DDP", synced.arm(), args, kwargs)
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
        self._world.ledger.replicas[described(module)] = _WHY
        self._look_at(module)

    def _retire(self) -> None:
        """Let go of what no optimizer trains any more, on no rank: models of folds and trials that are over."""
        if not self._synced:
            return
        trained = self._trained.of_living()
        own = [synced.ids.isdisjoint(trained) for synced in self._synced.values()]
        # An optimizer in a cycle goes when the garbage collector of a rank comes by.
        of_ranks = [given[0] for given in self._world.share([own])]
        for key, flags in zip(list(self._synced), zip(*of_ranks, strict=True), strict=True):
            if all(flags):
                self._drop(self._synced.pop(key))

    def _keep(self, synced: Synced) -> Synced:
        self._synced[id(synced.module)] = synced
        self.ids = {key for its in self._synced.values() for key in its.ids}
        self._statistics.clear()
        return synced

    def _look_at(self, module: nn.Module) -> None:
        """Have a module's calls come here by themselves, whether or not all calls are watched."""
        if id(module) in self._looked_at:
            return
        swap.redirect_calls(module, self._called)
        self._looked_at[id(module)] = module

    def renew(self) -> None:
        """Put modules under a new DDP whose trained parameters are others by now."""
        for synced in [synced for synced in self._synced.values() if not synced.fits()]:
            if any(parameter.requires_grad for parameter in synced.module.parameters()):
                self._make(synced.module)
        if self._synced and not self._everything_found():
            self.watch()

    # --- backwards --------------------------------------------------------------------------------------------------

    def backward(self, run: Callable[..., None], args: Any, kwargs: Any) -> None:
        """Run a backward of the script; one inside another belongs to it."""
        if self.in_backward:
            run(*args, **kwargs)
            return
        if self.weights.is_used:
            args, kwargs = self.weights.weigh(args, kwargs)
        self.in_backward = self.weights.is_backward = True
        if self.tuning.is_on:
            self.tuning.begin()
        try:
            self._met("a backward", run, args, kwargs)
        finally:
            self.in_backward = self.weights.is_backward = False
        self.met += 1
        for synced in self._synced.values():
            synced.ended()
            if synced.pending or self.unsettled.waiting:
                self.unsettled.note(synced)
        beside = self._beside
        if (beside.parameters != [] or beside.pending) and beside.ended(self._trained, self.ids):
            self.unsettled.note(beside)
        if self.tuning.is_on:
            self.tuning.end()

    def _met(self, what: str, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Do what ranks meet in, as ``World.collective`` surrounds it, in a fifth of its time."""
        world = self._world
        if self._attendance.out_of_step is not None:
            world.check()
        counts = world.trail.enter(what)
        try:
            return run(*args, **kwargs)
        except DdpPatchError:
            raise
        except Exception as error:
            explain(error)
            why = world.explain(error) if isinstance(error, RuntimeError) else None
            if why is not None and why is not error:
                raise why from error
            # A script that catches it goes on to other batches than ranks that did not meet it.
            world.compare_failures(error, f"{what}, the ranks' point {world.trail.count},")
            raise
        finally:
            if counts:
                world.trail.leave()

    # --- the end ----------------------------------------------------------------------------------------------------

    def close(self, settle: bool) -> None:
        """Give every module its class back and let DDP go.

        Args:
            settle: the script goes on, so its gradients are averaged; no collective otherwise.
        """
        for synced in self._synced.values():
            self._drop(synced, settle)
        self._synced.clear()
        self.ids.clear()
        self._conversions.stop()
        if settle:
            self.unsettled.settle(self._beside)
        self.unsettled.close()
        for module in self._looked_at.values():
            swap.restore(module)
        self._looked_at.clear()

    def _drop(self, synced: Synced, settle: bool = True) -> None:
        if settle:
            self.unsettled.settle(synced)
        synced.pending = False
        self.unsettled.note(synced)
        synced.let_go()
