"""One ``enable()``: the patches, the replicas and the world they work in, until ``disable()``."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.data.dataloader import _BaseDataLoaderIter  # the only name that a loader's iterators share

from .batch.deal import deal_structure
from .batch.rules import table  # noqa: F401 — fills the table of functions that stay on rows
from .batch.tensor import BatchTensor
from .batch.world import World
from .diagnosis.lockstep import compare_dealt
from .diagnosis.report import Report
from .errors import OrderError, PatchError
from .launch.frozen import Frozen
from .launch.job import Job
from .ledger import Ledger, script_line
from .loading.loaders import Loaders
from .options import Options
from .outward import Outward
from .patcher import Patch, Patcher
from .patches import (
    autograd,
    batch_norm,
    compiled,
    data_loader,
    data_parallel,
    exits,
    hooks,
    instance_norm,
    losses,
    modules,
    optimizer,
    packed,
    parallel_functions,
    recompute,
    scripted,
    transformer,
)
from .patches.already_distributed import Doors
from .replica.discovery import Discovery
from .replica.replicas import Replicas
from .structure import leaves


class Session:
    """What ``enable()`` put in place in a job of several ranks."""

    def __init__(self, options: Options, job: Job, on_stop: Callable[[], None]) -> None:
        """Apply every patch, or none.

        Raises:
            OrderError: when a loader or a model was used before, unlike what one process would see.
        """
        optimizers = find_used(job)
        self.options = options
        self.job = job
        self._on_stop = on_stop
        placement = job.placement
        self.ledger = Ledger()
        self._world = World(placement.rank, placement.world_size, job.group, job.device, self.ledger, job.explain)
        self._world.accelerated = job.device.type != "cpu"
        self._world.gathers_flat = self._world.accelerated and not job.shares_device
        self._replicas = Replicas(options, job, self._world)
        self._world.compare_failures = job.attendance.compare_failures
        self._world.post = job.attendance.post
        self._world.collect = job.attendance.collect
        self._world.trail = job.watch.trail
        self._world.one_thread.refuse = job.attendance.refuse
        self._world.computes_rows = lambda: self._replicas.forwards.computes_rows
        self._world.keeps_global = self._replicas.keeps_global
        self._world.own_draws = self._replicas.stream.entered
        self._outward = Outward(job, self._world, self._replicas)
        self._loaders = Loaders(self._replicas, job, self._world, options.timeout)
        # DataLoader workers and other children inherit the patched classes, but not the job.
        own_process = os.getpid()
        self._patcher = Patcher(enabled=lambda: os.getpid() == own_process)
        discovery = Discovery(self._replicas, self._patcher)
        doors = Doors(job, self.ledger, self._stand_aside)
        Frozen.refuse([given[0] for given in self._world.share([job.one_process.suspects()])])
        World.current = self._world
        self._running = True
        self._patcher.apply(
            [
                # In this order: first what tells that the script needs none of the rest.
                *doors.patches(),
                *data_loader.patches(self._loaders),
                *data_parallel.patches(self._replicas, job, self._world),
                *parallel_functions.patches(job, self._world),
                *optimizer.patches(self._replicas, discovery),
                *autograd.patches(self._replicas, self._world),
                *packed.patches(self._world),
                *instance_norm.patches(self._replicas, self._world),
                *hooks.patches(self._replicas, self._world),
                *losses.patches(self._world),
                *modules.patches(self._replicas),
                *self._outward.patches(),
                *recompute.patches(self._replicas, self._world),
                *batch_norm.patches(self._replicas, self._world, options.sync_batchnorm),
                *scripted.patches(),
                *transformer.patches(self._replicas),
                *exits.patches(job.watch),
            ]
        )
        doors.patch_when_imported(self._apply)
        data_loader.patch_when_imported(self._loaders, self._apply)
        self._outward.patch_when_imported(self._apply)
        self.ledger.patched.extend(f"{patch.name}: {patch.effect}" for patch in self._patcher.applied)
        compiled.keep_dynamo_out()
        self._lines_dealt: set[str] = set()  # where ``deal`` was seen to get the same on every rank
        self._remove_hooks = optimizer.hooks(self._replicas, self._world)
        for existing in optimizers:
            self._replicas.optimizes(existing)
            discovery.start()
        self._outward.begin()
        job.closing.append(self.stop)
        job.one_process.hide()
        job.crash.shows_own = options.traceback
        if not options.quiet and placement.rank == 0 and not job.is_announced:
            sys.stderr.write(
                f"ddp_patch: {placement.world_size} ranks on {_named(job.device)}, started by {job.launcher}.\n"
            )
        job.is_announced = True

    def deal(self, data: Any, dim: int) -> Any:
        """Make batches of tensors that every rank holds whole."""
        dealt, self._replicas.rows = deal_structure(data, dim, self._world)
        line = script_line()
        if line not in self._lines_dealt:
            self._lines_dealt.add(line)
            whole = {path: leaf for path, leaf in leaves(data) if isinstance(leaf, torch.Tensor)}
            compare_dealt(self._world, {p: leaf for p, leaf in whole.items() if not isinstance(leaf, BatchTensor)})
        return dealt

    def per_rank(self) -> AbstractContextManager[None]:
        """Let this rank act for itself."""
        return self._outward.per_rank()

    def rank_zero(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Have rank 0 alone call a function."""
        return self._outward.rank_zero(name, function, args, kwargs)

    def take_over_tracker(self, module: str, name: str) -> None:
        """Have rank 0 alone make what a class or function of a library makes."""
        self._outward.take_over_tracker(module, name, self._apply)

    def resume_debugger(self) -> None:
        """Have a debugger that ran when the script came to ``enable()`` go on."""
        self._outward.resume_debugger()

    def report(self) -> Report:
        """Snapshot what happened so far."""
        return Report(self.job.placement.world_size, _named(self.job.device), self.ledger)

    def stop(self) -> None:
        """Undo everything, last thing first. Safe to call twice."""
        if not self._running:
            return
        self._running = False
        if self.stop in self.job.closing:
            self.job.closing.remove(self.stop)
        if self.options.report and self.job.placement.rank == 0 and self.ledger.patched:
            sys.stderr.write(str(self.report()))
        goes_on = Job.current is self.job  # not at the end of the program
        if goes_on:
            self._outward.be_heard()
        self._replicas.close(settle=goes_on)
        if goes_on:
            remember_used(self.job)
        self._loaders.close()
        self._outward.stop()
        for remove in self._remove_hooks:
            remove()
        World.current = None
        del self._world.group  # see Job.close
        # At the end of the program nobody misses what a library has put in our places meanwhile.
        with contextlib.nullcontext() if goes_on else contextlib.suppress(PatchError):
            try:
                self._patcher.undo()
            finally:
                if goes_on:
                    self.job.one_process.show()
                self._on_stop()

    def _apply(self, rows: list[Patch]) -> None:
        if self._running:
            self._patcher.apply(rows)

    def _stand_aside(self) -> None:
        self.ledger.patched.clear()  # nothing of it had an effect: there is nothing to report
        self.stop()


def find_used(job: Job) -> list[Optimizer]:
    """Look for what the script did before: its optimizers are adopted, anything that ran is refused.

    Raises:
        OrderError: after something that one process would have done with whole batches, naming it.
    """
    gc.collect()  # cycles that nobody holds any more are not in use
    optimizers = []
    for candidate in _candidates():
        known = job.trained.get(id(candidate))
        if isinstance(candidate, Optimizer):
            optimizers.append(candidate)
        elif known is not None and known() is candidate:
            continue  # the ranks did it together, in an earlier session
        elif isinstance(candidate, _BaseDataLoaderIter):
            raise OrderError(
                f"{script_line()}: ddp_patch.enable() came after a DataLoader had been iterated, so the ranks already "
                "work on different batches. Move this line above that loop, best to the top of the script."
            )
        elif candidate.grad is not None:
            raise OrderError(
                f"{script_line()}: ddp_patch.enable() came after a backward (a parameter of shape "
                f"{tuple(candidate.shape)} has a gradient), so the ranks already trained apart. Move this line above "
                "the training, best to the top of the script."
            )
    return optimizers


def remember_used(job: Job) -> None:
    """Note what this session iterated and trained, so that the next one accepts it."""
    job.trained = {id(c): weakref.ref(c) for c in _candidates() if not isinstance(c, Optimizer)}


def _candidates() -> Iterator[Any]:
    wanted = (_BaseDataLoaderIter, torch.nn.Parameter, Optimizer)
    known: dict[type, bool] = {}
    for candidate in gc.get_objects():
        # type, not isinstance: that asks __class__ of objects that warn or compute when asked for an attribute.
        kind = type(candidate)
        if kind not in known:
            known[kind] = issubclass(kind, wanted)
        if known[kind]:
            yield candidate


def _named(device: torch.device) -> str:
    return "the CPU" if device.type == "cpu" else str(device)
