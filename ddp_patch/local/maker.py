"""Puts a module of the script under torch's DDP, and under another one where that is needed."""

from __future__ import annotations

import gc
from collections.abc import Collection

import torch
from torch import nn

from ..batch.world import World
from ..calling import swap
from ..calling.calls import described
from ..gradients.averages import in_buckets
from ..gradients.compression import compress
from ..gradients.tuning import Tuning
from ..job.job import Job
from ..options import Options
from ..replica.replica import MOST_CONVERSIONS, for_ddp
from .synced import Synced

_WHY = "the outermost module whose parameters are optimized; under torch's DDP, on this rank's rows"


class Maker:
    """Makes what the models of a script are kept alike by. Every rank comes here with the same module."""

    def __init__(self, options: Options, job: Job, world: World, tuning: Tuning) -> None:
        """Begin.

        Args:
            options: of the session.
            job: whose ranks take part.
            world: likewise.
            tuning: chooses options of DDP by measurement.
        """
        self._options = options
        self._job = job
        self._world = world
        self._tuning = tuning

    def make(self, module: nn.Module) -> Synced:
        """Put a module under DDP, with rank 0's weights."""
        synced = Synced(module, self._world, self._options)
        if synced.dense:
            self._wrap(synced, with_broadcast=True)
        self._world.ledger.replicas[described(module)] = _WHY
        return synced

    def anew(self, synced: Synced) -> Synced:
        """Put a module under another DDP, since autograd has other nodes of its parameters.

        Args:
            synced: what was, and was let go of.
        """
        synced.ddp = None
        gc.collect()  # DDP is in cycles, and holds the old ones as long as it is there
        made = Synced(synced.module, self._world, self._options)
        made.conversions = synced.conversions + 1
        made.sends_buffers, made.buffers = synced.sends_buffers, synced.buffers
        if made.dense and made.conversions <= MOST_CONVERSIONS:
            self._wrap(made, with_broadcast=False)
        return made

    def try_out(self, synced: Synced) -> None:
        """Build DDP anew where other values of its options are to be tried, or were chosen."""
        if synced.built is not None and self._tuning.wants(synced.module, synced.built) and synced.is_between_steps:
            synced.ddp = None
            gc.collect()  # likewise: its hooks stay on the parameters (torch 2.13)
            self._wrap(synced, with_broadcast=False)

    def send_buffers(self, models: Collection[Synced]) -> None:
        """Give all ranks rank 0's buffers where DDP does so in its next forward: a validation does not go through it.

        Every rank comes here as an epoch begins.

        Args:
            models: under DDP.
        """
        for synced in models:
            if synced.buffers is not None:
                synced.buffers.is_due = True
        modules = [synced.module for synced in models if synced.ddp is not None and synced.sends_buffers]
        buffers = [its for module in modules for its in module.buffers() if its.layout is torch.strided]
        for part in in_buckets(buffers):
            flat = self._world.broadcast(torch.cat([buffer.detach().reshape(-1) for buffer in part]))
            for buffer, piece in zip(part, flat.split([buffer.numel() for buffer in part]), strict=True):
                buffer.data.copy_(piece.view_as(buffer))  # counts no version: a backward may still need it

    def _wrap(self, synced: Synced, with_broadcast: bool) -> None:
        built = synced.built = self._tuning.built(synced.module, described(synced.module), synced.dense)
        # A script may evaluate before it trains: DDP writes to buckets of gradients later on.
        with self._world.collective("the making of DDP"), torch.inference_mode(False):
            ddp = self._job.wrapping.wrap(
                synced.module,
                swap.original_class(synced.module),
                without=synced.sparse,
                with_broadcast=with_broadcast,
                sync_buffers=synced.sends_buffers,
                **for_ddp(built.options),
            )
            synced.put_under(ddp)
        if built.options.comm_hook is not None:
            compress(built.options.comm_hook, ddp, lambda is_last: None, built.powersgd_after)
