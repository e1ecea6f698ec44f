"""Rows of a step, and its batches: those that the script took from its loaders, and went backwards from."""

from __future__ import annotations

import functools
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .. import script_thread
from ..loading.batches import batch_size_of
from ..loading.iterator import Batches
from ..pace import Pace
from ..state import State
from ..structure import leaves


class RowCounter:
    """Counts them, and clocks the loaders of a script that runs alone."""

    def __init__(self, ranks: int) -> None:
        """Start at none.

        Args:
            ranks: that there are; one has no session that clocks loaders.
        """
        self._ranks = ranks
        self._is_alone = ranks == 1
        self._drawn: weakref.WeakKeyDictionary[Any, deque[int | None]] = weakref.WeakKeyDictionary()  # by iterator
        self._taken = self._batches = self._backwards = 0  # rows, batches that a backward came from, all backwards
        self._pending = 0  # rows of the last batch, as long as no backward has come: it may be there to validate
        # For a script without a loader: rows of the first call of a module since a backward, and before the last one.
        self._since = self._of_call = self._calls = 0
        self._share = 1.0  # of backwards, those that a call of their own came before
        self._calls_before = 0  # calls that ddp_patch's books had at the end of the last step
        self._hook: Any = None
        self._pace: Callable[[], Pace | None] = lambda: None

    def install(self, pace: Callable[[], Pace | None]) -> None:
        """Look on from now on.

        Args:
            pace: gives the clock, once there is one.
        """
        self._pace = pace
        owner: Any = _BaseDataLoaderIter
        owner._next_index = self._drawing(owner._next_index)
        owner.__next__ = self._clocked(owner.__next__)
        Batches.__next__ = self._counted(Batches.__next__)  # type: ignore[method-assign]
        if self._is_alone:  # on ranks a hook on all modules would have each of them compute everything
            self._hook = register_module_forward_pre_hook(self._called)

    def backward(self) -> None:
        """A backward begins."""
        self._backwards += 1
        self._batches += self._pending > 0
        self._taken, self._pending = self._taken + self._pending, 0
        if self._since:
            self._calls += 1
            self._of_call, self._since = self._since, 0

    def of_step(self) -> tuple[int, int]:
        """Give the rows of all ranks in the step that is over, 0 where that cannot be told, and its batches."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
            self._of_call = self._of_call or self._since
            self._share = self._calls / max(self._backwards, 1)
        rows, batches, backwards = self._taken or self._pending, self._batches, self._backwards
        self._taken = self._batches = self._backwards = 0
        return (rows, max(batches, 1)) if rows else self._of_models(backwards)

    def _of_models(self, backwards: int) -> tuple[int, int]:
        """What models were called on, where the script has no loader: two losses of one call are of one batch."""
        session = State.session
        if session is None:
            batches = max(round(self._share * backwards), 1)
            return self._of_call * batches, batches
        rows = session.ledger.rows
        calls, self._calls_before = rows.total() - self._calls_before, rows.total()
        batches = max(min(calls, backwards), 1)
        return (rows.most_common(1)[0][0] * session.world.size * batches if rows else 0), batches

    def _drawing(self, wrapped: Callable[..., Any]) -> Callable[..., Any]:
        """Note how many samples each batch under way is made of; workers have some drawn ahead."""

        @functools.wraps(wrapped)
        def next_index(iterator: Any) -> Any:
            index = wrapped(iterator)
            self._drawn.setdefault(iterator, deque()).append(len(index) if isinstance(index, list) else None)
            return index

        return next_index

    def _clocked(self, wrapped: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(wrapped)
        def following(iterator: Any) -> Any:
            pace = self._pace() if self._is_alone else None
            began = None if pace is None else pace.begin()
            try:
                data = wrapped(iterator)
            finally:
                if pace is not None:
                    pace.end("loading", began)
            drawn = self._drawn.get(iterator)
            count = drawn.popleft() if drawn else None
            session = State.session
            if session is None or session.options.view == "local":  # a batch is one rank's own
                self._pending = (batch_size_of(data, count) or _rows(data)) * self._ranks
            return data

        return following

    def _counted(self, wrapped: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(wrapped)
        def following(batches: Batches) -> Any:
            data = wrapped(batches)
            session = State.session
            rows = session.replicas.rows if session is not None and script_thread.is_here() else None
            self._pending = rows or _rows(data)
            return data

        return following

    def _called(self, module: Any, args: Any) -> None:
        if not self._since and torch.is_grad_enabled():
            self._since = _rows(args)


def _rows(data: Any) -> int:
    """Rows of a batch: the first dimension of its first tensor that has one."""
    return next((leaf.size(0) for _, leaf in leaves(data) if isinstance(leaf, torch.Tensor) and leaf.dim()), 0)
