"""The modules of a session that run on rows, and those that were seen to need the whole batch."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..batch.tensor import BatchTensor
from ..batch.world import World
from ..launch.job import Job
from ..options import Options
from ..structure import leaves
from . import batch_norm, swap
from .gradients import GradientSync
from .probe import keeps_rows_apart
from .rows import Entry, enter, leave, whole_arguments
from .streams import RankStream

_REBUILD_AFTER = 2  # forwards with another set of trainable parameters before DDP is built anew


class Replica:
    """One module under DDP. The module object, its parameters and its state dict stay what they were."""

    def __init__(self, module: nn.Module, job: Job, world: World) -> None:
        """Defer DDP to the first forward that trains."""
        self.module = module
        self.sync: GradientSync | None = None
        self._job = job
        self._world = world
        self._ddp: DistributedDataParallel | None = None
        self._other_set = 0

    def run(self, entry: Entry) -> Any:
        """Compute this rank's rows, under DDP where gradients are wanted."""
        ddp = self._training_ddp() if torch.is_grad_enabled() else None
        if ddp is None or self.sync is None:
            return self.module(*entry.args, **entry.kwargs)
        return self.sync.anchored(ddp(*entry.args, **entry.kwargs))

    def drop(self) -> None:
        """Let DDP go: an instance alive when the interpreter exits aborts the process (torch 2.13)."""
        self._ddp = None
        self.sync = None

    def _training_ddp(self) -> DistributedDataParallel | None:
        if self.sync is not None and self.sync.trains_the_same():
            self._other_set = 0
            return self._ddp
        if not any(parameter.requires_grad for parameter in self.module.parameters()):
            return None
        if self.sync is not None:
            # A net frozen for the other net's step (GANs) comes back; one that stays different gets a new DDP.
            self._other_set += 1
            if self._other_set <= _REBUILD_AFTER:
                return None
            self.sync.settle()
        self._other_set = 0
        self._ddp = self._job.wrap(self.module)  # type: ignore[assignment]
        assert self._ddp is not None
        self.sync = GradientSync(self._ddp, self._world)
        return self._ddp


class Replicas:
    """Decides for each module call whether it runs on rows, whole, or as the script wrote it."""

    def __init__(self, options: Options, job: Job, world: World) -> None:
        """Start without any replica."""
        self.rows: int | None = None  # size of the batch the script is working on
        self.discovering = True  # False once the script uses nn.DataParallel: it says itself what to distribute
        self.stream = RankStream(world.rank, world.device)
        self._options = options
        self._job = job
        self._world = world
        self._replicas: dict[int, Replica] = {}
        self._whole: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._optimized_ids: set[int] | None = None
        self._depth = 0  # > 0 while a module computes rows or was told to compute the whole
        self._on_rows = False

    # --- optimizers -------------------------------------------------------------------------------------------------

    def optimizes(self, optimizer: Any) -> None:
        """Remember an optimizer: what it trains is what has to be found."""
        self._optimizers.add(optimizer)
        self._optimized_ids = None

    def _optimized(self) -> set[int]:
        if self._optimized_ids is None:
            self._optimized_ids = {
                id(parameter)
                for optimizer in self._optimizers
                for group in optimizer.param_groups
                for parameter in group["params"]
            }
        return self._optimized_ids

    def everything_found(self) -> bool:
        """Tell whether every optimized parameter has its replica, so that calls need not be watched any more."""
        optimized = self._optimized()
        found = {id(p) for replica in self._replicas.values() for p in replica.module.parameters()}
        return bool(optimized) and optimized <= found

    # --- calls ------------------------------------------------------------------------------------------------------

    @property
    def inside(self) -> bool:
        """Whether a module that was already decided on is running."""
        return self._depth > 0

    def found_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Tell whether a module call should be taken over: the outermost owner of optimized parameters, on a batch."""
        if self.inside or not self.discovering or id(module) in self._replicas:
            return False
        if module in self._whole:
            return True
        if not any(isinstance(leaf, torch.Tensor) for _, leaf in leaves((args, kwargs))):
            return False
        optimized = self._optimized()
        return any(id(parameter) in optimized for parameter in module.parameters())

    def call_found(
        self, run: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a module that owns optimized parameters, and settle how it runs from now on."""
        if module in self._whole:
            return self._call_whole(run, args, kwargs)
        entry = enter(module, args, kwargs, self.rows, self._options.batch_dims)
        if entry is None:
            return self._call_whole(run, args, kwargs)
        with self._deciding():
            apart, reason = keeps_rows_apart(module, args, kwargs, entry)
        name = _described(module)
        if not apart:
            self._whole[module] = reason
            self._world.ledger.whole_modules[name] = reason
            return self._call_whole(run, args, kwargs)
        replica = self.make(module, f"outermost owner of optimized parameters that was called on a batch; {reason}")
        swap.swap(module, {"__call__": self._call_of(replica, type(module))})
        return self._call_entered(replica, entry)

    def make(self, module: nn.Module, why: str) -> Replica:
        """Give a module a replica; replicas of modules inside it are dropped."""
        inner = {id(child) for child in module.modules()} - {id(module)}
        for key in [key for key in self._replicas if key in inner]:
            self._forget(key)
        replica = Replica(module, self._job, self._world)
        self._replicas[id(module)] = replica
        layers = batch_norm.synchronise(module, lambda: self._on_rows) if self._options.sync_batchnorm else 0
        self._world.ledger.replicas[_described(module)] = why + (
            f"; {layers} BatchNorm layers see all rows" * (layers > 0)
        )
        return replica

    def call(
        self,
        replica: Replica,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        dim: int | None = None,
        vector: bool = False,
    ) -> Any:
        """Run a replica on rows if its arguments are a batch, as the script wrote it otherwise."""
        if self.inside:
            return run(*args, **kwargs)
        entry = enter(replica.module, args, kwargs, self.rows, self._options.batch_dims, dim)
        if entry is None:
            return self._call_whole(run, args, kwargs)
        return self._call_entered(replica, entry, vector)

    def replica_of(self, module: nn.Module) -> Replica | None:
        """The replica that a module was given, if any."""
        return self._replicas.get(id(module))

    def _call_of(self, replica: Replica, original: type[nn.Module]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            def run(*args: Any, **kwargs: Any) -> Any:
                return original.__call__(module, *args, **kwargs)

            if module is not replica.module:  # made by self.__class__(...)
                return run(*args, **kwargs)
            return self.call(replica, run, args, kwargs)

        return call

    def _call_entered(self, replica: Replica, entry: Entry, vector: bool = False) -> Any:
        self._world.ledger.rows[entry.layout.counts[self._world.rank]] += 1
        with self._deciding(), self.stream.entered():
            self._on_rows = True
            try:
                outputs = replica.run(entry)
            finally:
                self._on_rows = False
        return leave(replica.module, outputs, entry, vector)

    def _call_whole(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = whole_arguments(args, kwargs)
        with self._deciding():
            return run(*args, **kwargs)

    @contextmanager
    def _deciding(self) -> Iterator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    # --- gradients --------------------------------------------------------------------------------------------------

    def after_backward(self) -> None:
        """Tell every replica that a backward ended."""
        for replica in self._replicas.values():
            if replica.sync is not None:
                replica.sync.after_backward()

    def before_step(self, optimizer: Any) -> None:
        """Make the gradients that an optimizer is about to use global."""
        for replica in self._replicas.values():
            sync = replica.sync
            if sync is None or not sync.pending:
                continue
            if any(sync.covers(group["params"]) for group in optimizer.param_groups):
                sync.settle()

    # --- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give every module its class back and let DDP go."""
        for key in list(self._replicas):
            self._forget(key)

    def _forget(self, key: int) -> None:
        replica = self._replicas.pop(key)
        replica.drop()
        batch_norm.release(replica.module)
        swap.restore(replica.module)


def _described(module: nn.Module) -> str:
    count = sum(parameter.numel() for parameter in module.parameters())
    return f"{swap.original_class(module).__name__} ({count:,} parameters)"


def holds_batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell whether any argument is a batch."""
    return any(isinstance(leaf, BatchTensor) for _, leaf in leaves((args, kwargs)))
