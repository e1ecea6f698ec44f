"""The modules of a session that run on rows, and those that were seen to need the whole batch."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._C._functorch import peek_interpreter_stack as _transforms  # torch 2.13
from torch.jit import is_tracing as _is_tracing  # type: ignore[attr-defined]  # documented, and not annotated

from ..batch.world import World
from ..errors import BatchError, DdpPatchError
from ..launch.job import Job
from ..options import Options
from ..structure import leaves
from . import module_hooks, swap
from .backwards import Backwards
from .replica import Replica
from .rows import Entry, as_batches, leave, whole_arguments
from .streams import RankStream
from .trained import Trained
from .verdicts import Call, First, Verdicts, described

Ran = tuple[nn.Module, str]  # a module, and how its call was carried out: by the kind of its verdict, or
_OBSERVED = "observed"  # on batches, and nothing inside it was looked at


class Replicas:
    """Decides for each module call whether it runs on rows, whole, or as the script wrote it."""

    def __init__(self, options: Options, job: Job, world: World) -> None:
        """Start without any replica."""
        self.rows: int | None = None  # size of the batch the script is working on
        self.discovering = True  # False once the script uses nn.DataParallel: it says itself what to distribute
        self.stream = RankStream(world.rank, world.device)
        self.backwards = Backwards(world)
        self.hooks = module_hooks.HookCensus()
        self.verdicts = Verdicts(world, options.batch_dims)
        self._options = options
        self._job = job
        self._world = world
        self._replicas: dict[int, Replica] = {}
        if job.precision.dtype is torch.float16:
            job.precision.when_applied = self.backwards.loss_scale.activate
        self._trained = Trained()
        self._keepers: dict[int, Replica] = {}  # of modules found that were not computed on rows yet, or never are
        self.recorded: list[Ran] | None = None  # how calls ran, while something may have to be computed again
        self.recalled: deque[Ran] | None = None  # how they are to run, while it is
        self._written = 0  # > 0 while a module that was found runs as written, so that those inside it are looked at
        self._depth = 0  # > 0 while a module computes rows or was told to compute the whole
        self.on_rows = False  # a module is computing this rank's rows
        self._calls = 0  # model calls on rows so far, the same number on every rank

    # --- optimizers -------------------------------------------------------------------------------------------------

    def optimizes(self, optimizer: Any) -> None:
        """Remember an optimizer: what it trains is what has to be found."""
        self._trained.add(optimizer)
        self.backwards.regrouped(optimizer)

    def everything_found(self) -> bool:
        """Tell whether every optimized parameter has its replica, so that calls need not be watched any more."""
        optimized = self._trained.ids()
        found = {id(p) for replica in self._replicas.values() for p in replica.module.parameters()}
        return bool(optimized) and optimized <= found and not self._job.precision.asked

    # --- calls ------------------------------------------------------------------------------------------------------

    @property
    def inside(self) -> bool:
        """Whether a module that was already decided on is running."""
        return self._depth > 0

    def found(self, call: Call) -> bool:
        """Tell whether a module call should be taken over: the outermost owner of optimized parameters, on a batch."""
        if self.inside or not self.discovering or id(call.module) in self._replicas:
            return False
        if not any(isinstance(leaf, torch.Tensor) for _, leaf in leaves((call.args, call.kwargs))):
            return False
        optimized = self._trained.ids()
        found = any(id(parameter) in optimized for parameter in call.module.parameters())
        return found and not _is_rewritten()

    def call_found(self, call: Call) -> Any:
        """Run a module that owns optimized parameters, and settle how calls of this form run from now on."""
        self._world.one_thread.begins()
        return self._job.precision.applied(self._call_found, call)

    def _call_found(self, call: Call) -> Any:
        entry = self.verdicts.enter(call, self.rows, self._written == 0)
        if entry is None:
            return self._call_whole(call)
        if entry.unclear:
            return self._call_unclear(call, entry.unclear)
        kind = self._decided(call, entry)
        if kind is None:
            keeper = self._keepers[id(call.module)] = self._keeper(call.module)
            keeper.keep()
            first = self._first(keeper, call, entry)
            if first.ran:
                return first.result
            kind = first.verdict.kind
        if kind == "rows":
            return self._call_new(call)
        self._record(call.module, kind)
        if kind == "whole":
            return self._call_whole(call)
        if kind == _OBSERVED:
            with self._deciding():
                return self._on_batches(call, entry)
        self._written += 1
        try:
            return self._on_batches(call, entry)
        finally:
            self._written -= 1

    def _call_new(self, call: Call) -> Any:
        if self.recalled is not None:
            self.recalled.appendleft((call.module, "rows"))  # for the replica
        replica = self.make(call.module, "outermost owner of optimized parameters that was called on a batch")
        swap.swap(call.module, {"__call__": self._call_of(replica, type(call.module))})
        return self.call(replica, call)

    def make(self, module: nn.Module, why: str) -> Replica:
        """Give a module a replica; replicas of modules inside it are dropped."""
        inner = {id(child) for child in module.modules()} - {id(module)}
        for key in [key for key in self._replicas if key in inner]:
            self._forget(key)
        replica = self._replicas[id(module)] = self._keeper(module)
        self._world.ledger.replicas[described(module)] = why
        replica.keep()
        for keeper in self._keepers.values():
            keeper.leave_to(replica)
        return replica

    def _keeper(self, module: nn.Module) -> Replica:
        held = self._keepers.pop(id(module), None)
        return held or Replica(module, self._options, self._job, self._world, self.backwards)

    def _decided(self, call: Call, entry: Entry) -> str | None:
        """Tell how calls of this form run; None for a form that was not seen before."""
        if self.recalled is not None:
            return self._recall(call.module)
        verdict = self.verdicts.known(call, entry)
        return None if verdict is None else verdict.kind

    def _record(self, module: nn.Module, kind: str) -> None:
        """Note how a call runs, before what it calls does the same."""
        if self.recorded is not None:
            self.recorded.append((module, kind))

    def _recall(self, module: nn.Module) -> str:
        """Tell how the call ran that is computed again now. Calls that are not looked at any more are passed over."""
        assert self.recalled is not None
        if any(of is module for of, _ in self.recalled):
            while True:
                of, kind = self.recalled.popleft()
                if of is module:
                    return kind
        return _OBSERVED

    def _first(self, replica: Replica, call: Call, entry: Entry) -> First:
        if replica.sync is not None:
            replica.sync.untied = True
        self._calls += 1
        try:
            with self._deciding():
                first = self.verdicts.first(call, entry, self.rows)
        except DdpPatchError:
            raise
        except Exception as error:
            self._world.compare_failures(error, f"call {self._calls} of {described(call.module)}")
            raise
        if first.ran:
            if first.verdict.kind == "rows":
                self._world.ledger.rows[first.entry.layout.counts[self._world.rank]] += 1
            self._record(call.module, _OBSERVED)
        return first

    def call(self, replica: Replica, call: Call) -> Any:
        """Run a replica on rows if its arguments are a batch, as the script wrote it otherwise."""
        self._world.one_thread.begins()  # before ``inside`` is true for the other thread as well
        if self.inside or _is_rewritten():
            return call.as_written()
        return self._job.precision.applied(self._call, replica, call)

    def _call(self, replica: Replica, call: Call) -> Any:
        if self.hooks.inside(call.module):
            self._world.ledger.whole_modules[described(call.module)] = (
                "a module inside it has hooks, which see whole batches"
            )
            return call.as_written()
        if not module_hooks.has_own(call.module):
            return self._call_replica(replica, call)

        def inner(*args: Any, **kwargs: Any) -> Any:
            return self._call_replica(replica, call.of(args, kwargs))

        return module_hooks.around(call.module, call.run, inner, call.args, call.kwargs)

    def _call_replica(self, replica: Replica, call: Call) -> Any:
        if module_hooks.needs_whole(call.module):
            return self._call_whole(call)
        if not replica.fits() and replica.is_substituted():
            self._world.ledger.note(f"{described(call.module)}: functional_call computes the whole batch")
            return self._call_whole(call)
        entry = self.verdicts.enter(call, self.rows, self._written == 0)
        if entry is None:
            return self._call_whole(call)
        if entry.unclear:
            return self._call_unclear(call, entry.unclear)
        kind = self._decided(call, entry)
        if kind is None:
            replica.prepare()
            first = self._first(replica, call, entry)
            if first.ran:
                return first.result
            entry, kind = first.entry, first.verdict.kind
        self._record(call.module, kind)
        if kind in ("view", _OBSERVED):
            with self._deciding():  # its own gradients are kept global as they are
                return self._on_batches(call, entry)
        if kind == "whole":
            return self._call_whole(call)
        verdict = self.verdicts.known(call, entry)
        return self._call_entered(replica, entry, {} if verdict is None else verdict.dims, call.vector)

    def replica_of(self, module: nn.Module) -> Replica | None:
        """The replica that a module was given, if any."""
        return self._replicas.get(id(module))

    def _call_of(self, replica: Replica, original: type[nn.Module]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            made = Call(module, functools.partial(original.__call__, module), args, kwargs)
            if module is not replica.module:  # made by self.__class__(...)
                return made.as_written()
            return self.call(replica, made)

        return call

    def _call_entered(self, replica: Replica, entry: Entry, dims: Mapping[str, int | None], vector: bool) -> Any:
        self._world.ledger.rows[entry.layout.counts[self._world.rank]] += 1
        with self._deciding(), self.stream.entered():
            self.on_rows = True
            self._calls += 1
            try:
                with self._world.collective(
                    "a call of the model"
                ):  # DDP exchanges the order of its buckets in a forward
                    outputs = replica.run(entry)
            except DdpPatchError:
                raise
            except Exception as error:
                self._world.compare_failures(error, f"call {self._calls} of {described(replica.module)}")
                raise
            finally:
                self.on_rows = False
        try:
            return leave(replica.module, outputs, entry, dims, vector)
        except Exception as error:  # the shapes of this rank's rows may tell what those of others do not
            self._world.compare_failures(error, f"the outputs of call {self._calls} of {described(replica.module)}")
            raise

    def _on_batches(self, call: Call, entry: Entry) -> Any:
        return call.of(*as_batches(call.args, call.kwargs, entry)).as_written()

    def _call_whole(self, call: Call) -> Any:
        args, kwargs = whole_arguments(call.args, call.kwargs)
        with self._deciding():
            return call.run(*args, **kwargs)

    def _call_unclear(self, call: Call, why: str) -> Any:
        """Run a call on batches, if a model makes it: attention masks, say, of texts as long as there are texts.

        Raises:
            BatchError: if the script makes it, which can say what it means.
        """
        if not self._written and self.recalled is None:
            raise BatchError(why)
        if self.recalled is not None:
            self._recall(call.module)
        self._record(call.module, _OBSERVED)
        with self._deciding():
            return call.as_written()

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
        for keeper in self._keepers.values():
            keeper.drop(settle)
        self._keepers.clear()
        self.verdicts.close()

    def _forget(self, key: int, settle: bool = True) -> None:
        replica = self._replicas.pop(key)
        replica.drop(settle)
        swap.restore(replica.module)


def _is_rewritten() -> bool:
    """Tell whether the code is being traced, or transformed by ``torch.func``, below which ranks cannot meet."""
    return bool(_is_tracing()) or _transforms() is not None
