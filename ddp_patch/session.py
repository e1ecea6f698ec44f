"""One ``enable()`` in a job of several ranks: everything that patched names work with, until ``disable()``."""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from .batch import aliases
from .batch.rules import table  # noqa: F401 — fills the table of functions that stay on rows
from .batch.world import World
from .compiling.functions import Functions
from .deciding import generic_values
from .diagnosis.dealing import Dealing
from .diagnosis.greeting import Greeting
from .diagnosis.recording import record
from .diagnosis.report import Report
from .earlier import find_used, remember_used
from .effects.once import Once
from .effects.system_random import SystemRandom
from .errors import PatchError
from .gradients import zeroing
from .gradients.parameter_check import ParameterCheck
from .job.job import Job
from .job.ranks_noted_at_import import NotedRanks
from .ledger import Ledger
from .loading.loaders import Loaders
from .options import Options
from .patch import Patch
from .patcher import Patcher
from .rates import Rates
from .replica.applied import AppliedFunctions
from .replica.by_hand import ByHand
from .replica.call_stack import ON_WHOLE
from .replica.discovery import Discovery
from .replica.replicas import Replicas
from .replica.scalars import Scalars
from .stepping import Stepping


class Session(Once):
    """What a wrapper of ``patches`` gets as its first argument."""

    def __init__(self, options: Options, job: Job, on_stop: Callable[[], None]) -> None:
        """Put its parts together; nothing changes before ``begin``.

        Raises:
            OrderError: when a loader or a model was used before, unlike what one process would see.
        """
        self._adopted = find_used(job)
        self._on_stop = on_stop
        self._take_back: list[Callable[[], None]] = []
        self.is_running = False
        self.ends_by_error = False  # of a with statement that it is opened by
        self.options = options
        self.job = job
        self.ledger = Ledger()
        self.world = World.of(job, self.ledger)
        self._dealing = Dealing(self.world)
        self.rates = Rates(options, job.placement.world_size, self.ledger)
        self.stepping = Stepping()
        every = options.check_every
        self.parameter_check = None if every is None else ParameterCheck(self.world, every, self._models)
        self._greeting = Greeting(self.ledger, is_spoken=not options.quiet and job.placement.rank == 0)
        self._patcher = Patcher(self)
        self._make_view()
        self.pending_gradients.first = functools.partial(self.plant, zeroing.PATCHES)
        super().__init__(self.world, job)
        self.system_random = self._make_random()

    def _make_view(self) -> None:
        """Make what the script sees of loaders and models: whole batches."""
        world = self.world
        self.replicas = Replicas(self.options, self.job, world)
        self.generators: Any = self.replicas.generators
        """Of this rank's random numbers, told when the script seeds or comes back to a state."""
        self.pending_gradients = self.replicas.backwards.pending_gradients
        self.functions = Functions(self.replicas, world)
        self.applied = AppliedFunctions(self.replicas, world)
        forwards = self.replicas.forwards
        world.computes_rows = lambda: forwards.computes_rows
        is_replica_parameter = self.replicas.backwards.is_replica_parameter
        world.has_averaged_gradient = functools.partial(forwards.has_averaged_gradient, is_replica_parameter)
        world.unruled_calls.agreed = generic_values.agreed
        world.local_draws = self.replicas.generators.entered
        world.is_optimized = lambda tensor: id(tensor) in self.replicas.trained.ids()
        grow = self.options.batch == "per_device"
        self.loaders = Loaders(self.replicas, self.job, world, self.options.timeout, grow=grow)
        self.discovery = Discovery(self.replicas, self._patcher)
        self.scalars = Scalars(self.replicas, world)
        self.by_hand = self._by_hand(self.replicas, self.adopt)
        self.wrappers: weakref.WeakSet[torch.nn.DataParallel[Any]] = weakref.WeakSet()  # that the script made

    def _by_hand(self, models: Any, adopt: Callable[[Any], None] | None) -> ByHand:
        return ByHand(self.world, models, self.discovery, self._is_in_lockstep, adopt, self._greeting.stepped)

    def _is_in_lockstep(self) -> bool:
        return self.rank_zero.in_lockstep()

    def _models(self) -> list[torch.nn.Module]:
        """Give what is trained on all ranks."""
        return self.replicas.registry.modules()

    def _make_random(self) -> SystemRandom:
        return SystemRandom(self.rank_zero, self.owners)

    def adopt(self, optimizer: Any) -> None:
        """Take over an optimizer, made before or now, or one that got another group."""
        self.rates.meets(optimizer)
        self._optimizes(optimizer)
        self.discovery.start()

    def _optimizes(self, optimizer: Any) -> None:
        self.replicas.optimizes(optimizer)

    def _close_view(self, make_global: bool, goes_on: bool) -> None:
        self.replicas.close(make_global=make_global)
        if goes_on:
            remember_used(self.job)
        self.loaders.close()

    def _before_report(self) -> None:
        """The session ends well, on every rank."""

    def _hide_ranks(self) -> None:
        self.job.one_process.hide()

    def begin(
        self, rows: Sequence[Patch], others: Sequence[Callable[[Session], list[Callable[[], None]]]] = ()
    ) -> None:
        """Apply every patch, or none. Every rank comes here together.

        Args:
            rows: the patches, in their order.
            others: what else is put in place; each gives what takes it back.
        """
        job, placement = self.job, self.job.placement
        NotedRanks.refuse([values[0] for values in self.world.share([job.one_process.suspects()])])
        World.current, World.is_child = self.world, False
        self.is_running = True
        self.plant(rows)
        self.ledger.patched.extend(f"{patch.name}: {patch.effect}" for patch in self._patcher.applied)
        self._take_back = [undo for other in others for undo in other(self)]
        for existing in self._adopted:
            self.adopt(existing)
        self._adopted = []  # not kept by this
        if self.options.trace is not None:
            with self.rank_zero.alone():
                record(str(self.options.trace), self.world)
        self.console.begin()
        job.signals.begin(self.rank_zero.alone)
        job.closing.append(self.stop)
        self._hide_ranks()
        job.crash.shows_package = self.options.traceback
        if not job.is_announced:
            self._greeting.started(placement.world_size, _named(job.device), job.launcher)
        job.is_announced = True

    def on_whole(self) -> AbstractContextManager[None]:
        """Surround what sees whole batches, on every rank."""
        return self.replicas.forwards.at_position(ON_WHOLE)

    def plant(self, rows: Sequence[Patch]) -> None:
        """Apply patches, those of libraries as soon as the script imports them."""
        self._patcher.apply(rows)

    def agreed(self, value: Any) -> list[Any]:
        """Give what each rank measured, where all are at the same point; else this rank alone."""
        return [values[0] for values in self.world.share([value])] if self.rank_zero.in_lockstep() else [value]

    def deal(self, data: Any, dim: int) -> Any:
        """Make batches of tensors that every rank holds whole."""
        dealt, self.replicas.rows = self._dealing.of(data, dim)
        return dealt

    @contextlib.contextmanager
    def per_rank(self) -> Iterator[None]:
        """Let this rank speak and write for itself."""
        with self.rank_zero.alone(), self.console.speaking(), self.world.dealt.paused():
            yield

    def stepped(self, optimizer: Any, is_outermost: bool) -> None:
        """An optimizer of the script's has stepped.

        Args:
            optimizer: that has.
            is_outermost: inside of no other's step.
        """
        self.replicas.backwards.after_step(optimizer)
        if not is_outermost:
            return
        self.ledger.pace.stepped(profiles=self.options.report)
        self.replicas.backwards.tuning.stepped(optimizer)
        self.ledger.stepped(optimizer)
        if self._greeting.said != len(self.ledger.replicas):
            self._greeting.stepped()

    def report(self) -> Report:
        """Snapshot what happened so far."""
        return Report(self.job.placement.world_size, _named(self.job.device), self.ledger)

    def stand_aside(self) -> None:
        """Leave a script that distributes itself as it would be without ddp_patch."""
        self.ledger.patched.clear()  # nothing of it had an effect: there is nothing to report
        self.stop()
        self.job.release()

    def stop(self) -> None:
        """Undo everything, last thing first. Safe to call twice."""
        if not self.is_running:
            return
        self.is_running = False
        if self.stop in self.job.closing:
            self.job.closing.remove(self.stop)
        if not self.job.crash.failed and not self.job.rank_status.out_of_step:
            self._before_report()
        if self.options.report and self.job.placement.rank == 0 and self.ledger.patched:
            sys.stderr.write(str(self.report()))
        goes_on = Job.current is self.job  # not at the end of the program
        settles = goes_on and not self.job.crash.failed
        self.job.watch.trail.recorder = None
        self.job.signals.stop(goes_on=goes_on)
        if goes_on:
            self.console.stop()
        self._close_view(settles, goes_on)
        self._finish_effects()
        for undo in self._take_back:
            undo()
        World.current = None
        aliases.release_all()
        del self.world.group  # see Job.close
        # At the end of the program nobody misses what a library has put in our places meanwhile.
        with contextlib.nullcontext() if goes_on else contextlib.suppress(PatchError):
            try:
                self._patcher.undo()
            finally:
                if goes_on:
                    self.job.one_process.show()
                self._on_stop()


def _named(device: torch.device) -> str:
    return "the CPU" if device.type == "cpu" else str(device)
