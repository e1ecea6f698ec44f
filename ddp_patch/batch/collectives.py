"""The collectives of the ranks that share a batch."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist

from ..ledger import Ledger
from ..portable import portable
from .layout import Layout
from .names import function_name


class Collectives(ABC):
    """What ranks do together; World adds who they are, and what keeps them in step."""

    rank: int
    size: int
    group: dist.ProcessGroup
    ledger: Ledger
    gathers_flat: bool
    at_work: Any
    post: Callable[[str, bytes], None]
    collect: Callable[[str], list[bytes]]

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
        self.ledger.gathered(named(self.at_work), sent.numel())
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


def named(work: Any) -> str:
    """Name what ranks gather for, as the report does."""
    if work is None:
        return "a gradient or a value that was asked for"
    return work if isinstance(work, str) else function_name(work)
