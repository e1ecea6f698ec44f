"""Rows of a step: of the batches that the script took from its loaders, and went backwards from."""

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
from ..loading.batches import rows_of
from ..loading.iterator import Batches
from ..pace import Pace
from ..state import State
from ..structure import leaves


class Rows:
    """Counts them, and clocks the loaders of a script that runs alone."""

    def __init__(self, ranks: int) -> None:
        """Start at none.

        Args:
            ranks: that there are; one has no session that clocks loaders.
        """
        self._ranks = ranks
        self._is_alone = ranks == 1
        self._drawn: weakref.WeakKeyDictionary[Any, deque[int | None]] = weakref.WeakKeyDictionary()  # by iterator
        self._taken = 0
        self._held = 0  # rows of the last batch, as long as no backward has come: it may be there to validate
        self._of_call = 0  # rows of the first call of a module, for a script without a loader
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
        self._taken, self._held = self._taken + self._held, 0

    def of_step(self) -> int:
        """Give the rows of all ranks in the step that is over; 0 where that cannot be told."""
        rows, self._taken = self._taken or self._held or self._of_call, 0
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        return rows or self._of_models()

    def _of_models(self) -> int:
        """What models were called on, where the script has no loader."""
        session = State.session
        if session is None or not session.ledger.rows:
            return 0
        return session.ledger.rows.most_common(1)[0][0] * session.world.size

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
                self._held = (rows_of(data, count) or _rows(data)) * self._ranks
            return data

        return following

    def _counted(self, wrapped: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(wrapped)
        def following(batches: Batches) -> Any:
            data = wrapped(batches)
            session = State.session
            known = session.replicas.rows if session is not None and script_thread.is_here() else None
            self._held = known or _rows(data)
            return data

        return following

    def _called(self, module: Any, args: Any) -> None:
        if not self._of_call and torch.is_grad_enabled():
            self._of_call = _rows(args)


def _rows(data: Any) -> int:
    """Rows of a batch: the first dimension of its first tensor that has one."""
    return next((leaf.size(0) for _, leaf in leaves(data) if isinstance(leaf, torch.Tensor) and leaf.dim()), 0)
