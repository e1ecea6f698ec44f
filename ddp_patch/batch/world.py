"""The ranks that share a batch, and their collectives."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from ..errors import BatchError
from ..ledger import Ledger
from ..portable import portable
from ..trail import Trail
from .layout import Layout
from .names import function_name
from .observation import Observation
from .one_thread import OneThread


@dataclass
class World:
    """This rank among the ranks that share every batch."""

    rank: int
    size: int
    group: dist.ProcessGroup
    device: torch.device
    ledger: Ledger = field(default_factory=Ledger)
    # What to raise instead of beginning a collective (None given), or for one that failed.
    explain: Callable[[RuntimeError | None], Exception | None] = lambda error: error
    # Returns if every rank failed at a point of the script, and raises if only some did.
    compare_failures: Callable[..., None] = lambda error, where, advice="": None
    # Leaves something for the other ranks under a name, and waits for what all have left there, without a collective.
    post: Callable[[str, bytes], None] = lambda name, own: None
    collect: Callable[[str], list[bytes]] = lambda name: []
    trail: Trail = field(default_factory=Trail)  # where this rank is among the points at which ranks meet
    one_thread: OneThread = field(default_factory=OneThread)
    operations: int = 0  # torch functions called on batches so far, the same number on every rank
    # Parameters whose gradients are made global elsewhere, all at once.
    keeps_global: Callable[[torch.Tensor], bool] = lambda tensor: False
    # Surrounds what draws random numbers for this rank's rows.
    own_draws: Callable[[], AbstractContextManager[None]] = nullcontext

    # On accelerators, which add in any order, so that ranks that compute the same get other last digits, and which are
    # waited for where a value is looked at.
    accelerated: bool = False

    # NCCL gathers a list by way of a further tensor; gloo gathers into one tensor four times slower (torch 2.13).
    gathers_flat: bool = False

    # A loss may count on having no targets to ignore. False once one had, or once somebody looks at gradients on their
    # way, which could not be corrected afterwards.
    may_assume: bool = True

    observation: Observation | None = None  # of a forward that computes on batches

    at_work: Any = None  # the function, or what else in words, that ranks gather batches for
    repeats: bool = False  # what it computes, every rank computes

    reductions: Any = None  # the losses of a forward that computes rows
    alone: bool = False  # a trial computes rows: ranks do not meet, and the value of a sum does not matter

    # This thread is in a dataset or a collate function that no other rank runs.
    reading: ContextVar[bool] = field(default_factory=lambda: ContextVar("reading", default=False))

    # This rank loads rows of its own in the script's process.
    fetching: ContextVar[bool] = field(default_factory=lambda: ContextVar("fetching", default=False))

    # A trial of a model: what it does to the world outside is left out.
    muted: ContextVar[bool] = field(default_factory=lambda: ContextVar("muted", default=False))

    computes_rows: Callable[[], bool] = lambda: False  # a model does, now
    sees_gradients: bool = False  # what is called sees true gradients in its backward, not rows' times N

    asking: bool = False  # rank 0 asks its user, and the other ranks wait

    current: ClassVar[World | None] = None

    @classmethod
    def get(cls) -> World:
        """Give the world of the running session.

        Raises:
            BatchError: after ``disable()``, when a batch of the finished session is still used.
        """
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

    @contextmanager
    def working_on_whole(self, what: Any) -> Iterator[None]:
        """Surround what sees whole batches, on every rank.

        Args:
            what: a function, or what else in words.
        """
        self.ledger.saw_whole(_named(what))
        before = self.at_work, self.repeats
        self.at_work, self.repeats = what, True
        try:
            yield
        finally:
            self.at_work, self.repeats = before

    @contextmanager
    def working_on_rows(self, what: Any) -> Iterator[None]:
        """Surround a function that computes this rank's rows of batches."""
        before, self.at_work = self.at_work, what
        try:
            yield
        finally:
            self.at_work = before

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

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over the ranks, into a new tensor."""
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        self.ledger.count("all_reduce", total.numel() * total.element_size())
        with self.collective("a sum over the ranks", total.numel()):
            dist.all_reduce(total, group=self.group)
        return total

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Give every rank rank 0's tensor, in place."""
        self.ledger.count("broadcast", tensor.numel() * tensor.element_size())
        with self.collective("a tensor of rank 0", tensor.numel()):
            dist.broadcast(tensor, 0, group=self.group)
        return tensor

    def check(self) -> None:
        """Raise if this rank is out of step with the others."""
        refused = self.explain(None)
        if refused is not None:
            raise refused
        if self.asking:
            raise BatchError(
                "While a person types, as for the names that Tab completes, the ranks cannot compute on batches."
            )
        if self.reading.get():
            raise BatchError(
                "A dataset or a collate_fn that one rank of each host runs computes on batches, or calls the model, in "
                "which all ranks take part. Write loader = ddp_patch.shard_batch(loader), so that all run it, or do it "
                "after the batch was loaded."
            )

    @contextmanager
    def collective(self, what: str, size: int = 0) -> Iterator[None]:
        """Surround a collective: a rank that is out of step must not begin it, and its failure is explained.

        Args:
            what: names it in messages, alike on every rank.
            size: of what is sent, alike on every rank, where that is known.

        Raises:
            LockstepError: if this rank or this thread is out of step with the others.
        """
        self.check()
        self.one_thread.begins()
        if self.observation is not None:
            self.observation.crossed()
        counts = self.trail.enter(what, size)
        try:
            yield
        except RuntimeError as error:
            why = self.explain(error)
            if why is None or why is error:
                raise
            raise why from error
        finally:
            if counts:
                self.trail.leave()

    def comes_to(self, what: str) -> bool:
        """Come to what all ranks come to together, though not all wait; what only some do is none.

        Returns:
            whether ``trail.leave`` has to be called.
        """
        return not (self.fetching.get() or self.reading.get() or self.muted.get()) and self.trail.enter(what)

    def all_gather_rows(self, rows: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Concatenate the ranks' rows in row order along ``layout.dim``."""
        # Bytes travel: gloo has no all_gather of bool, complex or 8-bit floats.
        own = rows.detach().movedim(layout.dim, 0).contiguous()
        longest = max(layout.counts)
        shape = own.shape[1:]
        row_bytes = own.element_size() * shape.numel()
        whole = rows.new_empty([*rows.shape[: layout.dim], layout.total, *rows.shape[layout.dim + 1 :]])
        if row_bytes == 0:
            return whole
        # A contiguous tensor of one element may have any stride, which view() refuses.
        flat = own.reshape(-1).clone(memory_format=torch.contiguous_format) if own.numel() == 1 else own.reshape(-1)
        sent = flat.view(torch.uint8)
        if own.shape[0] < longest:
            sent = torch.cat([sent, sent.new_zeros((longest - own.shape[0]) * row_bytes)])
        # Into memory of its own: a view made inside an autograd function refuses in-place writes.
        fits = layout.dim == 0 and longest * self.size == layout.total
        gathered = whole.view(-1).view(torch.uint8) if fits else sent.new_empty(self.size * sent.numel())
        parts = gathered.view(self.size, -1).unbind()
        self.ledger.gathered(_named(self.at_work), sent.numel())
        with self.collective("a gather of a batch", sent.numel()):
            if self.gathers_flat:
                dist.all_gather_single(gathered, sent, group=self.group)
            else:
                dist.all_gather(list(parts), sent, group=self.group)
        if not fits:
            for rank, part in enumerate(parts):
                start, count = layout.span(rank)
                piece = part[: count * row_bytes].view(own.dtype).view(count, *shape)
                whole.narrow(layout.dim, start, count).copy_(piece.movedim(0, layout.dim))
        return whole

    def share(self, values: list[Any]) -> list[list[Any]]:
        """Exchange small Python objects: entry r is what rank r gave."""
        gathered: list[Any] = [None] * self.size
        self.ledger.count("all_gather_object", 0)
        with self.collective("an exchange of objects"):
            dist.all_gather_object(gathered, values, group=self.group)
        return gathered

    def leaders(self, value: Any) -> Any:
        """Give every rank the Python object that rank 0 has.

        Raises:
            Exception: on every rank, if it cannot be pickled.
        """
        given: list[Any] = [None]
        if self.rank == 0:
            try:
                given = [(True, pickle.dumps(value))]
            except Exception as error:  # noqa: BLE001 — the other ranks wait: all raise it below
                given = [(False, portable(error))]
        self.ledger.count("broadcast_object", 0)
        with self.collective("an object of rank 0"):
            dist.broadcast_object_list(given, src=0, group=self.group)
        is_good, told = given[0]
        if not is_good:
            raise told
        return pickle.loads(told)

    def exchange(self, name: str, value: Any) -> list[Any]:
        """Exchange Python objects under a name that is used once, from whichever thread; slower than ``share``."""
        self.post(name, pickle.dumps(value))
        return [pickle.loads(text) for text in self.collect(name)]

    def together(self, action: Callable[[], Any]) -> None:
        """Let every rank act, wait until all have, and fail everywhere if one failed.

        An error must not keep a rank from the exchange: the others would wait for it.
        """
        error: BaseException | None = None
        try:
            action()
        except Exception as raised:  # noqa: BLE001 — whatever it is, all ranks raise it below
            error = raised
        failures = [given[0] for given in self.share([portable(error)])]
        failure = error or next((failure for failure in failures if failure is not None), None)
        if failure is not None:
            try:
                raise failure
            finally:
                del error, failure, failures  # frames that hold their error are freed late, with files and tensors


def _named(work: Any) -> str:
    if work is None:
        return "a gradient or a value that was asked for"
    return work if isinstance(work, str) else function_name(work)
