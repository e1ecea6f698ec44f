"""A session whose script sees this rank's rows, ranks and all: hand-written DDP from one line."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from ..earlier import remember_used
from ..job.job import Job
from ..patch import Patch
from ..replica.discovery import Discovery
from ..session import Session
from .dealing import Dealing
from .generators import LocalGenerators, OwnSeeds
from .loaders import LocalLoaders
from .local_numbers import LocalNumbers, digest
from .models import LocalModels


class LocalSession(Session):
    """What a wrapper of ``patches`` gets as its first argument under ``view="local"``."""

    def _make_view(self) -> None:
        placement = self.job.placement
        self.generators: LocalGenerators = LocalGenerators(placement.rank, self.job.device)
        self.models = LocalModels(self.options, self.job, self.world)
        self.local_numbers = LocalNumbers(self.world, self.models.trained.rates)
        self.pending_gradients = self.models.pending_gradients
        self._local_dealing = Dealing(self.world, self.models.weights)
        per_host = placement.local_world_size
        self.local_loaders = LocalLoaders(
            self.options, self.world, self.models, self.generators, per_host, self.local_numbers.compare
        )
        self.discovery = Discovery(self.models, self._patcher)
        self.by_hand = self._by_hand(self.models, None)

    def begin(
        self, rows: Sequence[Patch], others: Sequence[Callable[[Session], list[Callable[[], None]]]] = ()
    ) -> None:
        """Apply every patch, or none. Every rank comes here together."""
        self.rank_zero.note_output = lambda how, saved: self.local_numbers.note_output(how, digest(saved))
        super().begin(rows, others)

    def _models(self) -> list[torch.nn.Module]:
        return self.models.modules()

    def _make_random(self) -> OwnSeeds:
        return OwnSeeds(self.generators, self.rank_zero, self.owners)

    def adopt(self, optimizer: Any) -> None:
        """Take over an optimizer, made before or now, or one that got another group."""
        super().adopt(optimizer)
        if self.models.trained.ids() <= self.models.ids:  # by an earlier optimizer, and none was frozen then
            self.models.rest()

    def _optimizes(self, optimizer: Any) -> None:
        self.models.optimizes(optimizer)

    def _close_view(self, make_global: bool, goes_on: bool) -> None:
        self.local_loaders.close()
        self.models.close(make_global and not self.ends_by_error)  # which other ranks may not have met
        if goes_on:
            self.generators.restore_shared()
            remember_used(self.job)

    def _before_report(self) -> None:
        if self.ends_by_error:  # of this rank, perhaps of no other
            return
        # At the end of the program ranks have waited for each other. A script that goes on may have parted before.
        counts = Job.current is self.job and self.world.reaches_point("the end of the local view")
        try:
            with contextlib.suppress(Exception):  # a rank that is gone by now: there is nobody to compare with
                self.local_numbers.compare_at_the_end()
        finally:
            if counts:
                self.world.trail.leave()

    def _hide_ranks(self) -> None:
        """Libraries see the ranks, as under hand-written DDP."""

    def on_whole(self) -> AbstractContextManager[None]:
        """There are no batches."""
        return contextlib.nullcontext()

    def deal(self, data: Any, dim: int) -> Any:
        """Give this rank's rows of tensors that every rank holds whole."""
        return self._local_dealing.of(data, dim)

    def stepped(self, optimizer: Any, is_outermost: bool) -> None:
        """An optimizer of the script's has stepped."""
        models = self.models
        if models.collective_calls != models.calls_before_step:
            models.after_step(optimizer)
        if not is_outermost:
            return
        self.ledger.pace.stepped(profiles=False)
        if models.tuning.is_on:
            models.tuning.stepped(optimizer)
        for group in optimizer.param_groups:
            if group["params"]:  # it may be empty
                self.local_numbers.steps += id(group["params"][0]) in models.ids
                break
        self.ledger.stepped(optimizer)
        if self._greeting.said != len(self.ledger.replicas):
            self._greeting.stepped()
