"""Which rows of a dataset each batch is made of; and giving a script's shuffled loaders the batches of another run."""

from __future__ import annotations

import functools
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.utils.data import RandomSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ...ledger import script_line
from .made import line_of
from .record import Record

Batches = list[list[list[list[int]]]]  # of loaders, epochs, batches


class RowRecorder:
    """Notes the rows as samplers draw them, in the script's process, whoever loads them."""

    def __init__(self, record: Record, batches: str) -> None:
        """Prepare.

        Args:
            record: of this rank.
            batches: file of those that shuffled loaders are to give; empty to leave them alone.
        """
        self._record = record
        self._batches: Batches = json.loads(Path(batches).read_text(encoding="utf-8")) if batches else []
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._epochs: dict[int, int] = {}
        self._running: weakref.WeakKeyDictionary[Any, _Epoch] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Look on from now on."""
        owner: Any = _BaseDataLoaderIter
        owner.__init__ = self._around_begin(owner.__init__, is_first=True)
        owner._reset = self._around_begin(owner._reset, is_first=False)
        owner._next_index = self._around_next(owner._next_index)

    def _around_begin(self, wrapped: Callable[..., Any], is_first: bool) -> Callable[..., Any]:
        @functools.wraps(wrapped)
        def begin(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> Any:
            result = wrapped(iterator, loader, *args, **kwargs)
            again = args[0] if args else kwargs.get("first_iter", False)
            if is_first or not again:  # with workers, __init__ resets for the first time
                self._running[iterator] = self._begin(loader)
            return result

        return begin

    def _begin(self, loader: Any) -> _Epoch:
        number = self._numbers.setdefault(loader, len(self._numbers))
        epoch = self._epochs[number] = self._epochs.get(number, -1) + 1
        sampler = loader.sampler
        shuffles = isinstance(sampler, RandomSampler) and not sampler.replacement
        size = _length(loader.dataset)
        self._record.event(
            "epoch",
            loader=number,
            epoch=epoch,
            line=script_line(),
            made=line_of(loader),
            rows=size,
            batch=loader.batch_size,
            drops=loader.drop_last,
            sampler=type(sampler).__name__,
            sampler_made=line_of(sampler),
            sampler_drops=bool(getattr(sampler, "drop_last", False)),
        )
        batches = None
        if shuffles and number < len(self._batches) and epoch < len(self._batches[number]):
            batches = iter(self._batches[number][epoch])
        return _Epoch(number, epoch, loader.dataset, batches)

    def _around_next(self, wrapped: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(wrapped)
        def next_index(iterator: Any) -> Any:
            running = self._running.get(iterator)
            if running is not None and running.batches is not None:
                recorded = next(iter(running.batches), None)
                if recorded is None:
                    raise StopIteration
                return recorded
            try:
                index = wrapped(iterator)
            except StopIteration:
                if running is not None:
                    self._record.once("epoch_end", loader=running.loader, epoch=running.epoch)
                raise
            if running is not None and isinstance(index, (list, tuple)) and all(isinstance(i, int) for i in index):
                batch = [_of_whole(running.dataset, i) for i in index]
                self._record.event("batch", loader=running.loader, epoch=running.epoch, rows=batch, own=list(index))
            return index

        return next_index


class _Epoch:
    """One pass over a loader."""

    def __init__(self, loader: int, epoch: int, dataset: Any, batches: Any) -> None:
        self.loader, self.epoch, self.dataset, self.batches = loader, epoch, dataset, batches


def _of_whole(dataset: Any, index: int) -> int:
    """Follow the index of a subset to that of the dataset that it is a part of."""
    while hasattr(dataset, "indices") and hasattr(dataset, "dataset"):
        index, dataset = int(dataset.indices[index]), dataset.dataset
    return index


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None
