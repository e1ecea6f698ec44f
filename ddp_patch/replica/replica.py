"""One module under DistributedDataParallel, which never leaves the module's parameters and hooks out of sight."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..batch.world import World
from ..diagnosis.lockstep import compare_parameters
from ..launch.job import Job
from ..options import Options
from ..structure import leaves
from .backwards import Backwards
from .compression import compression
from .gradients import GradientSync
from .rhythm import Rhythm
from .rows import Entry

_FOR_DDP = ("bucket_cap_mb", "gradient_as_bucket_view", "static_graph", "find_unused_parameters")
_REBUILD_AFTER = 2  # forwards with fewer trainable parameters before DDP is built anew


class Replica:
    """One module under DDP. The module object, its parameters and its state dict stay what they were."""

    def __init__(self, module: nn.Module, options: Options, job: Job, world: World, backwards: Backwards) -> None:
        """Defer DDP to the first forward that trains."""
        self.module = module
        self.sync: GradientSync | None = None
        self._options = options
        self._job = job
        self._world = world
        self._backwards = backwards
        self._rhythm = Rhythm(options.accumulate)
        self._ddp: DistributedDataParallel | None = None
        self._fewer = 0
        self._overlaps = False  # the sync was built for forwards of ours

    def run(self, entry: Entry) -> Any:
        """Compute this rank's rows, under DDP where gradients are wanted."""
        sync = self._training_sync() if torch.is_grad_enabled() else None
        if sync is None or sync.in_backward:  # activation checkpointing computes a forward again, for its values only
            return self.module(*entry.args, **entry.kwargs)
        only_parameters = not any(
            isinstance(leaf, torch.Tensor) and leaf.requires_grad for _, leaf in leaves((entry.args, entry.kwargs))
        )
        return sync.anchored((self._ddp or self.module)(*entry.args, **entry.kwargs), only_parameters)

    def prepare(self) -> None:
        """Keep gradients global from the coming call on, whatever becomes of it."""
        if torch.is_grad_enabled():
            self._training_sync()

    def keep(self) -> None:
        """Keep gradients global without DDP, for a module that may never be computed on rows."""
        if self.sync is None and trainable_ids(self.module):
            self._build(overlapped=False)

    def leave_to(self, other: Replica) -> None:
        """Leave the parameters that another replica has to it."""
        if self.sync is not None:
            self.sync.give_up(other.module.parameters())

    def drop(self, settle: bool = True) -> None:
        """Let DDP go: an instance alive when the interpreter exits aborts the process (torch 2.13)."""
        if self.sync is not None:
            self._backwards.remove(self.sync, settle)
            self.sync.let_go()
        self._ddp = None
        self.sync = None

    def is_substituted(self) -> bool:
        """Tell whether ``torch.func.functional_call`` runs the module with tensors that are not its parameters."""
        return any(
            value is not None and not isinstance(value, nn.Parameter)
            for layer in self.module.modules()
            for value in layer._parameters.values()
        )

    def fits(self) -> bool:
        """Tell whether DDP still stands for the module's parameters; asked at every call, so it is kept cheap."""
        sync = self.sync
        return (
            sync is not None
            and not sync.broken
            and trainable_ids(self.module) == sync.ids
            and all(p.dtype is dtype for p, dtype in zip(sync.parameters, sync.dtypes, strict=True))
        )

    def _training_sync(self) -> GradientSync | None:
        if self.fits() and self._overlaps:
            self._fewer = 0
            return self.sync
        trainable = trainable_ids(self.module)
        if not trainable:
            return None
        if self.sync is not None and trainable < self.sync.ids:
            # A net frozen for the other net's step (GANs) comes back; one that stays different gets a new DDP.
            self._fewer += 1
            if self._fewer <= _REBUILD_AFTER:
                return None
        self._fewer = 0
        pending = self.fits() and self.sync is not None and self.sync.pending
        self.drop(settle=not pending)
        # BatchNorm's statistics are the ranks' own where the author wanted it so.
        compare_parameters(self._world, self.module, with_buffers=self._options.sync_batchnorm)
        self._build()
        if pending and self.sync is not None:
            self._backwards.left_to(self.sync)
        return self.sync

    def _build(self, overlapped: bool = True) -> None:
        self._overlaps = overlapped
        sparse = sparse_parameters(self.module)
        dense = [p for p in self.module.parameters() if p.requires_grad and not any(p is other for other in sparse)]
        if dense and overlapped:
            chosen = {name: getattr(self._options, name) for name in _FOR_DDP}
            self._ddp = self._job.wrap(self.module, without=sparse, **chosen)
            # Armed by the backward that comes by, not by the forward: see ``gradients``.
            self._ddp.require_backward_grad_sync = False
        compress = compression(self._options.comm_hook, self._ddp)
        self.sync = GradientSync(dense, sparse, self._ddp, self._world, self._rhythm, compress)
        self._backwards.add(self.sync)


def sparse_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Weights whose gradients are sparse; DDP cannot reduce them in a step that leaves them unused (torch 2.13)."""
    return [
        cast(nn.Parameter, layer.weight)
        for layer in module.modules()
        if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and layer.sparse and layer.weight.requires_grad
    ]


def trainable_ids(module: nn.Module) -> set[int]:
    """Identities of the parameters that want gradients; faster than ``parameters()``, since it is asked every step."""
    found: set[int] = set()
    stack = [module]
    while stack:
        layer = stack.pop()
        found.update(id(p) for p in layer._parameters.values() if p is not None and p.requires_grad)
        stack.extend(child for child in layer._modules.values() if child is not None)
    return found
