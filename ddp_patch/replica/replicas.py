"""The modules of a session that run on rows, and those that were seen to need the whole batch."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..batch.world import World
from ..errors import DdpPatchError
from ..launch.job import Job
from ..options import Options
from ..structure import leaves
from . import module_hooks, swap
from .backwards import Backwards
from .probe import Verdict, judge
from .replica import Replica
from .rows import Entry, enter, leave, whole_arguments
from .streams import RankStream


class Replicas:
    """Decides for each module call whether it runs on rows, whole, or as the script wrote it."""

    def __init__(self, options: Options, job: Job, world: World) -> None:
        """Start without any replica."""
        self.rows: int | None = None  # size of the batch the script is working on
        self.discovering = True  # False once the script uses nn.DataParallel: it says itself what to distribute
        self.stream = RankStream(world.rank, world.device)
        self.backwards = Backwards(world)
        self.hooks = module_hooks.HookCensus()
        self._options = options
        self._job = job
        self._world = world
        self._replicas: dict[int, Replica] = {}
        # module -> verdict by training mode, in which many forwards differ, and by what becomes of scalars
        self._verdicts: weakref.WeakKeyDictionary[nn.Module, dict[tuple[bool, bool], Verdict]] = (
            weakref.WeakKeyDictionary()
        )
        self._memory: weakref.WeakKeyDictionary[nn.Module, dict[tuple[str, int], int | None]] = (
            weakref.WeakKeyDictionary()
        )
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._optimized_ids: set[int] | None = None
        self._depth = 0  # > 0 while a module computes rows or was told to compute the whole
        self.on_rows = False  # a module is computing this rank's rows
        self._calls = 0  # model calls on rows so far, the same number on every rank

    # --- optimizers -------------------------------------------------------------------------------------------------

    def optimizes(self, optimizer: Any) -> None:
        """Remember an optimizer: what it trains is what has to be found."""
        self._optimizers.add(optimizer)
        self._optimized_ids = None
        self.backwards.regrouped(optimizer)

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
        return bool(optimized) and optimized <= found and not self._job.precision.asked

    # --- calls ------------------------------------------------------------------------------------------------------

    @property
    def inside(self) -> bool:
        """Whether a module that was already decided on is running."""
        return self._depth > 0

    def found_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Tell whether a module call should be taken over: the outermost owner of optimized parameters, on a batch."""
        if self.inside or not self.discovering or id(module) in self._replicas:
            return False
        verdict = self._verdicts.get(module, {}).get((module.training, False))
        if verdict is not None:
            return verdict.kind == "whole" or self._job.precision.asked
        if not any(isinstance(leaf, torch.Tensor) for _, leaf in leaves((args, kwargs))):
            return False
        optimized = self._optimized()
        return any(id(parameter) in optimized for parameter in module.parameters())

    def call_found(
        self, run: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a module that owns optimized parameters, and settle how it runs from now on."""
        return self._job.precision.applied(self._call_found, run, module, args, kwargs)

    def _call_found(
        self, run: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        entry = self._enter(module, args, kwargs)
        verdict = self._verdicts.get(module, {}).get((module.training, False))
        if entry is None or (verdict is not None and verdict.kind == "whole"):
            return self._call_whole(run, args, kwargs)
        _, verdict = self._judge(module, args, kwargs, entry)
        if verdict.kind == "whole":
            return self._call_whole(run, args, kwargs)
        if verdict.kind == "view":
            return run(*args, **kwargs)
        replica = self.make(module, "outermost owner of optimized parameters that was called on a batch")
        swap.swap(module, {"__call__": self._call_of(replica, type(module))})
        return self.call(replica, run, args, kwargs)

    def _enter(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dim: int | None = None
    ) -> Entry | None:
        memory = self._memory.setdefault(module, {})
        return enter(module, args, kwargs, self.rows, self._options.batch_dims, memory, dim)

    def _judge(
        self,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        entry: Entry,
        dim: int | None = None,
        vector: bool = False,
    ) -> tuple[Entry, Verdict]:
        """Give the verdict on a module, and how it is entered if a guess about its arguments was wrong."""
        verdicts = self._verdicts.setdefault(module, {})
        mode = module.training, vector
        if mode not in verdicts:
            with self._deciding():
                verdict = judge(module, args, kwargs, entry, vector)
                if verdict.kind != "rows" and entry.guessed:
                    self._memory[module].update(dict.fromkeys(entry.guessed))
                    again = self._enter(module, args, kwargs, dim)
                    assert again is not None
                    entry, verdict = again, judge(module, args, kwargs, again, vector)
            verdicts[mode] = verdict
            if verdict.kind != "rows":
                self._world.ledger.whole_modules[_described(module)] = verdict.reason
        return entry, verdicts[mode]

    def make(self, module: nn.Module, why: str) -> Replica:
        """Give a module a replica; replicas of modules inside it are dropped."""
        inner = {id(child) for child in module.modules()} - {id(module)}
        for key in [key for key in self._replicas if key in inner]:
            self._forget(key)
        replica = Replica(module, self._options, self._job, self._world, self.backwards)
        self._replicas[id(module)] = replica
        self._world.ledger.replicas[_described(module)] = why
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
        return self._job.precision.applied(self._call, replica, run, args, kwargs, dim, vector)

    def _call(
        self,
        replica: Replica,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        dim: int | None,
        vector: bool,
    ) -> Any:
        module = replica.module
        if self.hooks.inside(module):
            self._world.ledger.whole_modules[_described(module)] = (
                "a module inside it has hooks, which see whole batches"
            )
            return run(*args, **kwargs)
        if not module_hooks.has_own(module):
            return self._call_replica(replica, run, args, kwargs, dim, vector)

        def inner(*args: Any, **kwargs: Any) -> Any:
            return self._call_replica(replica, run, args, kwargs, dim, vector)

        return module_hooks.around(module, run, inner, args, kwargs)

    def _call_replica(
        self,
        replica: Replica,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        dim: int | None,
        vector: bool,
    ) -> Any:
        if module_hooks.needs_whole(replica.module):
            return self._call_whole(run, args, kwargs)
        if not replica.fits() and replica.is_substituted():
            self._world.ledger.note(f"{_described(replica.module)}: functional_call computes the whole batch")
            return self._call_whole(run, args, kwargs)
        entry = self._enter(replica.module, args, kwargs, dim)
        if entry is None:
            return self._call_whole(run, args, kwargs)
        entry, verdict = self._judge(replica.module, args, kwargs, entry, dim, vector)
        if verdict.kind == "view":
            return run(*args, **kwargs)
        if verdict.kind == "whole":
            return self._call_whole(run, args, kwargs)
        return self._call_entered(replica, entry, verdict.dims, vector)

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

    def _call_entered(
        self, replica: Replica, entry: Entry, dims: Mapping[str, int | None], vector: bool = False
    ) -> Any:
        self._world.ledger.rows[entry.layout.counts[self._world.rank]] += 1
        with self._deciding(), self.stream.entered():
            self.on_rows = True
            self._calls += 1
            self._world.check()
            try:
                outputs = replica.run(entry)
            except DdpPatchError:
                raise
            except Exception as error:
                self._job.compare_failures(error, f"call {self._calls} of {_described(replica.module)}")
                raise
            finally:
                self.on_rows = False
        return leave(replica.module, outputs, entry, dims, vector)

    def _call_whole(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = whole_arguments(args, kwargs)
        with self._deciding():
            return run(*args, **kwargs)

    @contextmanager
    def back_inside(self, inside: bool, on_rows: bool) -> Iterator[None]:
        """Be where a forward was, while backward computes a part of it again."""
        before, self.on_rows = self.on_rows, on_rows
        self._depth += inside
        try:
            yield
        finally:
            self._depth -= inside
            self.on_rows = before

    @contextmanager
    def _deciding(self) -> Iterator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    # --- the end ----------------------------------------------------------------------------------------------------

    def close(self, settle: bool) -> None:
        """Give every module its class back and let DDP go.

        Args:
            settle: the script goes on, so its gradients are made global; no collective otherwise.
        """
        for key in list(self._replicas):
            self._forget(key, settle)

    def _forget(self, key: int, settle: bool = True) -> None:
        replica = self._replicas.pop(key)
        replica.drop(settle)
        swap.restore(replica.module)


def _described(module: nn.Module) -> str:
    count = sum(parameter.numel() for parameter in module.parameters())
    return f"{swap.original_class(module).__name__} ({count:,} parameters)"
