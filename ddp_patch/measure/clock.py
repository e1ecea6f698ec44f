"""The clock of a script's steps: alone by its own hooks, on ranks by that of ddp_patch's session."""

from __future__ import annotations

import contextlib
import functools
import os
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..pace import KINDS, Pace
from ..state import State
from ..verify.inside.record import Record
from .facts import facts
from .network import links
from .row_counter import RowCounter
from .saved_tensors import SavedTensors
from .session_facts import session_facts
from .tracer import Tracer
from .wanted import PROFILED, Wanted

_MOST_OTHERS = 3  # steps of one other optimizer between two of the leading one
_engine: Any = torch.autograd.Variable._execution_engine  # torch 2.13


class Enough(SystemExit):
    """The script has taken as many steps as are measured."""


class Clock:
    """Counts steps, and writes down what each of them took.

    A step lasts from one step of an optimizer to its next, and the optimizer is the one that steps first: where a
    script trains two networks in turn, one step is a step of each. Where it has done its part, as in a script that
    makes one for each fold, another one takes its place.
    """

    def __init__(self, record: Record, wanted: Wanted) -> None:
        """Prepare.

        Args:
            record: of this rank.
            wanted: which steps.
        """
        self._record = record
        self._wanted = wanted
        self._pace: Pace | None = None
        self._ranks = int(os.environ.get("WORLD_SIZE", "1"))  # before ddp_patch hides it
        self._rows = RowCounter(self._ranks)
        self._tracer = Tracer(Path(wanted.record) / f"trace.{record.rank}.json")
        self._optimizers: weakref.WeakValueDictionary[int, Optimizer] = weakref.WeakValueDictionary()
        self._leading = self._stepping = 0  # identities
        self._others: Counter[int] = Counter()  # steps of others since the last one of the leading one
        self._count = 0  # steps that are over
        self._sums = dict.fromkeys(("total", *KINDS), 0.0)
        self._backward = 0.0
        self._kept: SavedTensors | None = None
        self._python: list[float | None] = []
        self._is_over = False

    def install(self) -> None:
        """Look on from now on; before ddp_patch is enabled, whose hooks then come after these."""
        torch.autograd.backward = self._around(torch.autograd.backward)
        self._rows.install(lambda: self._pace)
        register_optimizer_step_pre_hook(self._before)
        register_optimizer_step_post_hook(self._after)

    def finish(self, how: str, error: BaseException | None) -> None:
        """Write down how the script ended.

        Args:
            how: "end", "exit" (``sys.exit``) or "error".
            error: that ended it.
        """
        self._tracer.end()
        if self._kept is not None:
            self._kept.end()
        said = f"{type(error).__name__}: {error}" if how == "error" else ""
        self._record.event("end", how="enough" if isinstance(error, Enough) else how, error=said, taken=self._count)

    def _around(self, wrapped: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(wrapped)
        def backward(*args: Any, **kwargs: Any) -> Any:
            self._rows.backward()
            began = perf_counter()
            try:
                if self._is_by_ddp():
                    return self._waiting(wrapped, *args, **kwargs)
                return wrapped(*args, **kwargs)
            finally:
                self._backward += perf_counter() - began

        return backward

    def _is_by_ddp(self) -> bool:
        """Say whether the script has DDP of its own, in the local view or where ddp_patch stands aside."""
        return self._ranks > 1 if State.session is None else _is_local()

    def _waiting(self, wrapped: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Clock what DDP waits for at the end of a backward, which in the global view ddp_patch's own hook does.

        DDP waits in a callback of the engine, which it queues when its last bucket is full. One that was queued before
        runs before it, when all gradients of this rank are there.
        """
        computed: list[float] = []

        def begun(gradient: Any) -> None:
            _engine.queue_callback(lambda: computed.append(perf_counter()))

        tensors = args[0] if args else kwargs.get("tensors")
        # torch takes an iterator as well, once.
        roots = list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]
        handles = [
            root.register_hook(begun)
            for root in roots[:1]
            if isinstance(root, torch.Tensor) and root.grad_fn is not None
        ]
        try:
            return wrapped(*args, **kwargs)
        finally:
            for handle in handles:
                handle.remove()
            pace = self._pace
            if computed and pace is not None and pace.begin() is not None:
                pace.end("waiting", computed[0])

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._is_over and not self._wanted.goes_on:
            raise Enough(0)
        session = State.session
        if self._pace is None or (session is not None and session.ledger.pace is not self._pace):  # enabled once more
            self._pace = Pace() if session is None else session.ledger.pace
            self._pace.heard = self._took
        self._lead(optimizer)
        has_closure = any(value is not None for value in (*args[1:], *kwargs.values()))  # of forwards and backwards
        if (session is None or _is_local()) and not has_closure:  # in the global view ddp_patch's own hook does it
            self._pace.steps()

    def _lead(self, optimizer: Optimizer) -> None:
        self._others[id(optimizer)] += 1
        if not self._leading or self._others[id(optimizer)] > _MOST_OTHERS:  # alike on every rank
            self._leading = id(optimizer)
            self._sums, self._backward = dict.fromkeys(self._sums, 0.0), 0.0
        if self._leading == id(optimizer):
            self._others.clear()
        self._optimizers[id(optimizer)] = optimizer

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._stepping = id(optimizer)
        if State.session is None and self._pace is not None:
            self._pace.stepped(profiles=False)

    def _took(self, seconds: float, spent: dict[str, float]) -> None:
        """A step of an optimizer is over."""
        for name, part in {"total": seconds, **spent}.items():
            self._sums[name] += part
        if self._stepping != self._leading or self._is_over:
            return
        self._count += 1
        rows, batches = self._rows.of_step()
        step = {**self._sums, "backward": self._backward, "rows": rows, "backwards": batches}
        self._sums, self._backward = dict.fromkeys(self._sums, 0.0), 0.0
        clocked = self._wanted.warmup + self._wanted.steps
        if self._wanted.warmup < self._count <= clocked:
            self._record.event("took", **step)
        assert self._pace is not None
        session = State.session
        if session is not None:
            self._profile(self._count - clocked, self._pace)
            clocked += PROFILED
            if self._count == clocked:
                self._record.event("network", **links(session))
        else:
            clocked += 1
        self._keep(self._count - clocked, rows, batches)
        self._trace(clocked, self._pace)
        if self._count == clocked + self._wanted.traced:
            self._record.event("facts", **facts(self._optimizers.values()))
            self._record.event("told", **session_facts(session, self._ranks))
            self._is_over = True

    def _profile(self, number: int, pace: Pace) -> None:
        """Have Python's profiler run in some steps, and keep the least: in the others something else ran as well."""
        if 0 < number <= PROFILED:
            self._python.append(pace.profiled(1))
        if 0 <= number < PROFILED:
            pace.profile()
        if number == PROFILED:
            self._record.event("python", seconds=min((each for each in self._python if each is not None), default=None))

    def _keep(self, number: int, rows: int, batches: int) -> None:
        """Count what autograd keeps in the last step before the traced ones, of which nothing else needs the time."""
        if number == -1:
            self._kept = SavedTensors()
            self._kept.begin(self._optimizers.values())
        elif number == 0 and self._kept is not None:
            kept, self._kept = self._kept.end(), None
            if kept:
                self._record.event("kept", bytes=kept, rows=rows, backwards=batches)

    def _trace(self, first: int, pace: Pace) -> None:
        if not self._wanted.traced:
            return
        if self._count == first:
            self._tracer.begin(pace)
        elif first < self._count < first + self._wanted.traced:
            self._tracer.stepped()
        elif self._count == first + self._wanted.traced:
            session = State.session
            with contextlib.nullcontext() if session is None else session.rank_zero.alone():
                self._record.event("traced", clocks=session is not None, **self._tracer.end())


def _is_local() -> bool:
    session = State.session
    return session is not None and session.options.view == "local"
