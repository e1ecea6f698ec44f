"""The collectives of the ranks that share a batch."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from ..job import texts
from ..job.seal import Seal
from ..ledger import Ledger
from .layout import Layout
from .names import function_name
from .strides import empty_whole, leader, scaled, tell_their_order

NOT_GIVEN = (
    "its forward looks at a batch that it was not given, such as one that its last call left in an attribute. Give it "
    "as an argument"
)


class Refused(Exception):
    """What cannot be tried, on copies of a module and by each rank for itself.

    The forward that is tried may catch it: what was refused last is noted.
    """

    latest: ClassVar[str] = ""

    def __init__(self, why: str) -> None:
        """Refuse.

        Args:
            why: in the words of the report.
        """
        super().__init__(why)
        Refused.latest = why


_counts = itertools.count(1)  # of this process, the same on every rank


class Collectives(ABC):
    """What ranks do together; World adds who they are, and what keeps them in step."""

    rank: int
    size: int
    group: dist.ProcessGroup
    ledger: Ledger
    gathers_flat: bool
    skips_collectives: bool
    working_for: Any
    observation: Any
    muted: ContextVar[bool]
    post: Callable[[str, bytes], None]
    wait_until_all_posted: Callable[[str], list[bytes]]
    seal: Seal

    @abstractmethod
    def collective(self, what: str, size: int = 0) -> AbstractContextManager[None]:
        """Surround a collective."""

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

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Stack the ranks' tensors, which have one shape, into ``[N, *shape]``."""
        local = tensor.detach().contiguous()
        every = local.new_empty(self.size, *local.shape)
        self.ledger.count("all_gather", local.numel() * local.element_size())
        with self.collective("a tensor of each rank", local.numel()):
            if self.gathers_flat:
                dist.all_gather_single(every.view(-1), local.view(-1), group=self.group)
            else:
                dist.all_gather([*every.unbind()], local, group=self.group)
        return every

    def all_gather_rows(self, rows: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Concatenate the ranks' rows in row order along ``layout.dim``."""
        if self.skips_collectives:  # some ranks alone may come here: a single row fits where several do not
            raise Refused(NOT_GIVEN)
        if rows.is_quantized:
            return quantized_as(rows, self.all_gather_rows(rows.int_repr(), layout))
        # Bytes travel: gloo has no all_gather of bool, complex or 8-bit floats.
        local = rows.detach().movedim(layout.dim, 0).resolve_conj().resolve_neg().contiguous()
        longest = max(layout.counts)
        shape = local.shape[1:]
        row_bytes = local.element_size() * shape.numel()
        if row_bytes == 0:
            return empty_whole(rows, layout, scaled(rows, layout))
        # A contiguous tensor of one element may have any stride, which view() refuses.
        flat = (
            local.reshape(-1).clone(memory_format=torch.contiguous_format) if local.numel() == 1 else local.reshape(-1)
        )
        sent = flat.view(torch.uint8)
        if local.shape[0] < longest:
            sent = torch.cat([sent, sent.new_zeros((longest - local.shape[0]) * row_bytes)])
        alike = tell_their_order(layout)
        if not alike:
            # Whole multiples of 16 bytes, so that every part starts where a complex number may.
            order = torch.tensor([*scaled(rows, layout), *[0] * (rows.dim() % 2)], device=sent.device)
            sent = torch.cat([sent, order.view(torch.uint8)])
        # Into memory of its own: a view made inside an autograd function refuses in-place writes.
        whole = empty_whole(rows, layout, scaled(rows, layout)) if alike else rows
        fits = alike and layout.dim == 0 and longest * self.size == layout.total and whole.is_contiguous()
        fits = fits and layout.is_consecutive
        # Detached: a view that a backend still has would look as if the script had it.
        gathered = whole.detach().view(-1).view(torch.uint8) if fits else sent.new_empty(self.size * sent.numel())
        parts = gathered.view(self.size, -1).unbind()
        is_watched = self.observation is not None or self.muted.get()
        self.ledger.gathered(named(self.working_for), sent.numel(), is_watched=is_watched)
        with self.collective("a gather of a batch", sent.numel()):
            if self.gathers_flat:
                dist.all_gather_single(gathered, sent, group=self.group)
            else:
                dist.all_gather(list(parts), sent, group=self.group)
        if not alike:
            order = parts[leader(layout)][-order.numel() * 8 :].clone().view(torch.int64)
            whole = empty_whole(rows, layout, tuple(order.tolist()[: rows.dim()]))
        if not fits:
            for rank, part in enumerate(parts):
                count = layout.counts[rank]
                piece = part[: count * row_bytes].view(local.dtype).view(count, *shape)
                layout.rows(rank).put(piece.movedim(0, layout.dim), whole, layout.dim)
        return whole

    def strides_of_whole(self, rows: torch.Tensor, layout: Layout) -> tuple[int, ...]:
        """Strides that the whole batch would have, were it laid out as the rows are.

        One exchange among the ranks where a rank's only row cannot tell.
        """
        if tell_their_order(layout):
            return scaled(rows, layout)
        with nullcontext() if self.observation is None else self.observation.paused():  # no row meets another
            strides: tuple[int, ...] = self.share([scaled(rows, layout)])[leader(layout)][0]
        return strides

    def share(self, values: list[Any]) -> list[list[Any]]:
        """Exchange small Python objects: entry r is what rank r gave.

        Raises:
            Exception: on every rank, if what one gave cannot be told.
        """
        name = f"what the ranks share, number {next(_counts)}"
        payload = self._packed(f"{name}, rank {self.rank}", values)
        self.ledger.count("all_gather_object", 0)
        with self.collective("an exchange of objects"):
            payloads = texts.gathered(payload, self.group, self.size)
        return [self._unpacked(f"{name}, rank {rank}", text) for rank, text in enumerate(payloads)]

    def leaders(self, value: Any) -> Any:
        """Give every rank the Python object that rank 0 has.

        Raises:
            Exception: on every rank, if it cannot be told.
        """
        name = f"what rank 0 has, number {next(_counts)}"
        payload = self._packed(name, value) if self.rank == 0 else b""
        self.ledger.count("broadcast_object", 0)
        with self.collective("an object of rank 0"):
            payload = texts.of_leader(payload, self.group)
        return self._unpacked(name, payload)

    def exchange(self, name: str, value: Any) -> list[Any]:
        """Exchange Python objects under a name that is used once, from whichever thread; slower than ``share``."""
        self.leave(name, value)
        return self.left(name)

    def leave(self, name: str, value: Any) -> None:
        """Leave this rank's part of an exchange, and go on."""
        self.post(name, self._packed(f"{name}, rank {self.rank}", value))

    def left(self, name: str) -> list[Any]:
        """Wait for what all ranks leave under a name."""
        posted = self.wait_until_all_posted(name)
        return [self._unpacked(f"{name}, rank {rank}", text) for rank, text in enumerate(posted)]

    def _packed(self, name: str, value: Any) -> bytes:
        """Write down what is told, or why it cannot be: the other ranks wait for it."""
        try:
            return self.seal.pack(name, (True, value))
        except Exception as error:  # noqa: BLE001 — pickling runs foreign code; all ranks raise it
            return self.seal.pack(name, (False, self.seal.portable_error(name, error)))

    def _unpacked(self, name: str, payload: bytes) -> Any:
        is_good, value = self.seal.unpack(name, payload)
        if not is_good:
            raise value
        return value

    def together(self, action: Callable[[], Any]) -> None:
        """Let every rank act, wait until all have, and fail everywhere if one failed.

        An error must not keep a rank from the exchange: the others would wait for it.
        """
        error: BaseException | None = None
        try:
            action()
        except Exception as raised:  # noqa: BLE001 — whatever it is, all ranks raise it below
            error = raised
        form = error if error is None else self.seal.portable_error("an error of one rank", error)
        failures = [answer[0] for answer in self.share([form])]
        failure = error or next((failure for failure in failures if failure is not None), None)
        if failure is not None:
            try:
                raise failure
            finally:
                # Frames that hold their error are freed late, with files and tensors.
                del error, form, failure, failures


def named(work: Any) -> str:
    """Name what ranks gather for, as the report does."""
    if work is None:
        return "what the script asked for (a gradient, a value)"
    return work if isinstance(work, str) else function_name(work)


def quantized_as(rows: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Give whole numbers the scale of some quantized rows, which all ranks have alike."""
    return torch._make_per_tensor_quantized_tensor(numbers, rows.q_scale(), rows.q_zero_point())
