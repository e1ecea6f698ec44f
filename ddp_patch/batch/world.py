"""The ranks that share a batch, and their collectives."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist

from ..errors import BatchError
from ..job.seal import Seal
from ..ledger import Ledger
from ..trail import Trail
from .collectives import Collectives, named
from .dealt_tensors import DealtTensors
from .in_datasets import computes as computes_in_dataset
from .meeting import Meeting
from .observation import Observation
from .one_thread import OneThread
from .tried_calls import TriedCalls

if TYPE_CHECKING:
    from ..job.job import Job


@dataclass
class World(Collectives):
    """This rank among the ranks that share every batch."""

    rank: int
    size: int
    group: dist.ProcessGroup
    device: torch.device
    ledger: Ledger = field(default_factory=Ledger)
    # What to raise instead of beginning a collective (None given), or for one that failed.
    explain: Callable[[RuntimeError | None], Exception | None] = lambda error: error
    # Returns if every rank failed at a point of the script, and raises if only some did.
    check_all_failed: Callable[..., None] = lambda error, where, advice="": None
    # Posts something for the other ranks under a name, and gives what all have posted there, without a collective.
    post: Callable[[str, bytes], None] = lambda name, payload: None
    wait_until_all_posted: Callable[[str], list[bytes]] = lambda name: []
    seal: Seal = field(default_factory=Seal)  # of what ranks tell each other as Python objects
    trail: Trail = field(default_factory=Trail)  # where this rank is among the points at which ranks meet
    one_thread: OneThread = field(default_factory=OneThread)
    operations: int = 0  # torch functions called on batches so far, the same number on every rank
    # Parameters whose gradients are made global elsewhere, all at once.
    has_averaged_gradient: Callable[[torch.Tensor], bool] = lambda tensor: False
    # Surrounds what draws random numbers for this rank's rows.
    local_draws: Callable[[], AbstractContextManager[None]] = nullcontext
    is_optimized: Callable[[torch.Tensor], bool] = lambda tensor: False  # by an optimizer of the script

    # On accelerators, which add in any order, so that ranks that compute the same get other last digits, and which are
    # waited for where a value is looked at.
    accelerated: bool = False

    # NCCL gathers a list by way of a further tensor; gloo gathers into one tensor four times slower (torch 2.13).
    gathers_flat: bool = False

    # Somebody looks at gradients on their way, which cannot be corrected afterwards, nor be a rank's share there.
    looks_at_gradients: bool = False

    observation: Observation | None = None  # of a forward that computes on batches
    tells_batch_sizes: bool = False  # a forward runs on batches: what it makes of their sizes is one as well
    rules_at_work: int = 0  # each called by the one before
    working_for: Any = None  # the function, or what else in words, that ranks gather batches for
    is_replicated: bool = False  # what it computes, every rank computes

    reductions: Any = None  # the losses of a forward that computes rows
    skips_collectives: bool = False  # a trial computes rows: ranks do not meet, and the value of a sum does not matter

    # This thread is in a dataset or a collate function that no other rank runs.
    reading: ContextVar[bool] = field(default_factory=lambda: ContextVar("reading", default=False))

    # This rank loads rows of its own in the script's process.
    fetching: ContextVar[bool] = field(default_factory=lambda: ContextVar("fetching", default=False))

    # A trial of a model: what it does to the world outside is left out.
    muted: ContextVar[bool] = field(default_factory=lambda: ContextVar("muted", default=False))
    muted_effects: list[str] = field(default_factory=list)  # what would have been written to files or logged

    computes_rows: Callable[[], bool] = lambda: False  # a model does, now
    unruled_calls: TriedCalls = field(default_factory=TriedCalls)  # functions without a rule
    sees_gradients: bool = False  # what is called sees true gradients in its backward, not rows' times N

    dealt: DealtTensors = field(default_factory=DealtTensors)  # plain tensors of the script's
    tape: Any = None  # records what is called on rows
    is_prompting: bool = False  # rank 0 asks its user, and the other ranks wait

    current: ClassVar[World | None] = None
    is_child: ClassVar[bool] = False  # of a rank's process, as a worker is

    @classmethod
    def of(cls, job: Job, ledger: Ledger) -> World:
        """Make the world of a session.

        Args:
            job: that this process is a rank of.
            ledger: of the session.
        """
        placement, rank_status, accelerated = job.placement, job.rank_status, job.device.type != "cpu"
        return cls(
            placement.rank,
            placement.world_size,
            job.group,
            job.device,
            ledger,
            job.explain,
            rank_status.check_all_failed,
            rank_status.post,
            rank_status.wait_until_all_posted,
            job.seal,
            job.watch.trail,
            OneThread(rank_status.refuse),
            accelerated=accelerated,
            gathers_flat=accelerated and not job.place.by_gloo,
        )

    @classmethod
    def get(cls) -> World:
        """Give the world of the running session.

        Raises:
            BatchError: after ``disable()``, when a batch of the finished session is still used.
        """
        if cls.current is None and cls.is_child:
            raise BatchError(
                "A process that a rank has started, as a worker of a loader, computes on a batch, in which all ranks "
                "take part. Give it the values: batch.clone().cpu().numpy(), or write num_workers=0."
            )
        if cls.current is None:
            raise BatchError(
                "A batch made under ddp_patch.enable() was used after ddp_patch.disable(), when its rows are no "
                "longer shared. Take the values you need out of it before: batch.clone().cpu().numpy()."
            )
        return cls.current

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Surround what all ranks do, inside what one of them does."""
        tokens = [(flag, flag.set(False)) for flag in (self.fetching, self.reading)]
        try:
            yield
        finally:
            for flag, token in tokens:
                flag.reset(token)

    @property
    def is_asked_by_forward(self) -> bool:
        """Whether the function at work is called by a forward that runs on batches, and by no rule."""
        if self.observation is not None:
            return self.observation.is_asked_by_forward
        return self.tells_batch_sizes and self.rules_at_work == 1

    @contextmanager
    def telling_batch_sizes(self, is_told: bool = True) -> Iterator[None]:
        """Surround a forward that runs on batches."""
        before, self.tells_batch_sizes = self.tells_batch_sizes, is_told
        try:
            yield
        finally:
            self.tells_batch_sizes = before

    @contextmanager
    def working_on_whole(self, what: Any) -> Iterator[None]:
        """Surround what sees whole batches, on every rank.

        Args:
            what: a function, or what else in words.
        """
        self.ledger.saw_whole(named(what))
        before = self.working_for, self.is_replicated
        self.working_for, self.is_replicated = what, True
        try:
            yield
        finally:
            self.working_for, self.is_replicated = before

    @contextmanager
    def working_on_rows(self, what: Any) -> Iterator[None]:
        """Surround a function that computes this rank's rows of batches."""
        before, self.working_for = self.working_for, what
        try:
            yield
        finally:
            self.working_for = before

    @contextmanager
    def reducing(self, reductions: Any) -> Iterator[Any]:
        """Surround a forward that computes rows with losses of its own; gives those of the forward around it."""
        before, self.reductions = self.reductions, reductions
        try:
            yield before
        finally:
            self.reductions = before

    @contextmanager
    def read_by_one(self) -> Iterator[None]:
        """Surround a dataset or a collate function that one rank runs for a host."""
        token = self.reading.set(True)
        try:
            yield
        finally:
            self.reading.reset(token)

    def check(self) -> None:
        """Raise if this rank is out of step with the others."""
        refused = self.explain(None)
        if refused is not None:
            raise refused
        if self.is_prompting:
            raise BatchError(
                "While a person types, as for the names that Tab completes, the ranks cannot compute on batches."
            )
        if self.reading.get():
            raise computes_in_dataset(read_by_one=True)

    def collective(self, what: str, size: int = 0, *, computes: bool = False) -> Meeting:
        """Surround a collective: a rank that is out of step must not begin it, and its failure is explained.

        Args:
            what: names it in messages, alike on every rank.
            size: of what is sent, alike on every rank, where that is known.
            computes: it is more than waiting for the other ranks.

        Raises:
            LockstepError: if this rank or this thread is out of step with the others.
        """
        return Meeting(self, what, size, computes)

    def reaches_point(self, what: str) -> bool:
        """Come to what all ranks come to together, though not all wait; what only some do is none.

        Returns:
            whether ``trail.leave`` has to be called.
        """
        return not (self.fetching.get() or self.reading.get() or self.muted.get()) and self.trail.enter(what)


def _be_a_child() -> None:
    if World.current is not None:
        World.current, World.is_child = None, True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_be_a_child)
