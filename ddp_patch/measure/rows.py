"""Rows of a step: of the batches that the script took from its loaders, and went backwards from."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..loading.iterator import Batches
from ..pace import Pace
from ..state import State
from ..structure import leaves


class Rows:
    """Counts them, and clocks the loaders of a script that runs alone."""

    def __init__(self, is_alone: bool) -> None:
        """Start at none.

        Args:
            is_alone: there is one rank, which has no session that clocks loaders.
        """
        self._is_alone = is_alone
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
        _BaseDataLoaderIter.__next__ = self._clocked(_BaseDataLoaderIter.__next__)  # type: ignore[method-assign]
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
            session = State.session
            if session is None or session.options.view == "local":
                self._held = _rows(data) * (1 if session is None else session.world.size)
            return data

        return following

    def _counted(self, wrapped: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(wrapped)
        def following(batches: Batches) -> Any:
            data = wrapped(batches)
            self._held = _rows(data)
            return data

        return following

    def _called(self, module: Any, args: Any) -> None:
        if not self._of_call and torch.is_grad_enabled():
            self._of_call = _rows(args)


def _rows(data: Any) -> int:
    """Rows of a batch: the first dimension of its first tensor that has one."""
    return next((leaf.size(0) for _, leaf in leaves(data) if isinstance(leaf, torch.Tensor) and leaf.dim()), 0)
