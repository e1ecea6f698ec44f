"""One module under DistributedDataParallel, which never leaves the module's parameters and hooks out of sight."""

from __future__ import annotations

import collections
import gc
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..batch.sparse import noted_sparse
from ..batch.world import World
from ..calling import compiled, swap
from ..calling.calls import Call, described
from ..calling.census import Census, ModuleContents
from ..calling.local_arguments import LocalArgs
from ..diagnosis.first_batches import compare_parameters
from ..gradients.accumulation import AccumulationSchedule
from ..gradients.backward_passes import BackwardPasses
from ..gradients.compression import compress
from ..gradients.flags import Flags
from ..gradients.gradient_sync import GradientSync
from ..gradients.option_trial import Built
from ..job.job import Job
from ..options import Options

_FOR_DDP = ("bucket_cap_mb", "gradient_as_bucket_view", "static_graph", "find_unused_parameters")
_dtype: Callable[[torch.Tensor], torch.dtype] = torch.Tensor.dtype.__get__  # type: ignore[attr-defined]
_DDPS_OWN = 25.0  # MiB
MOST_CONVERSIONS = 2  # to other types or devices; then gradients are averaged after backward, without DDP
MOST_RETURNS = 2  # to parameters that it was trained for before, as heads that take turns; then likewise
_SETTLED = 50  # forwards for the same parameters, after which DDP is worth its making
_REBUILD_AFTER = 2  # forwards with fewer trainable parameters before DDP is built anew


class Replica:
    """One module under DDP. The module object, its parameters and its state dict stay what they were."""

    def __init__(
        self, module: nn.Module, options: Options, job: Job, world: World, backwards: BackwardPasses, census: Census
    ) -> None:
        """Defer DDP to the first forward that trains."""
        self.module = module
        self.sync: GradientSync | None = None
        self._fitting: frozenset[int] | None = None  # the parameters that DDP was seen to stand for
        self._options = options
        self._job = job
        self._world = world
        self._backwards = backwards
        self._census = census
        self._schedule = AccumulationSchedule(options.accumulate)
        self._built: Built | None = None  # what DDP was built with
        self._ddp: DistributedDataParallel | None = None
        self._fewer = 0
        self._conversions = 0  # of its parameters, to another type or device and back
        self._stood_for: set[frozenset[int]] = set()  # parameters that it was built for
        self._returns = 0  # to some of these, each after a few forwards
        self._stood = 0  # forwards for the present ones

    def prepare(self, contents: ModuleContents) -> None:
        """Keep gradients global from the coming call on, however it is carried out."""
        sync = self.sync
        if torch.is_grad_enabled() and (sync is None or not sync.in_backward):
            self._renew(contents)

    def run(self, call: Call, local: LocalArgs) -> Any:
        """Compute this rank's rows: through DDP where TorchDynamo asks it at which layers gradients leave."""
        ddp = self._ddp
        # Activation checkpointing computes a forward again, for its values only.
        sync = self.sync
        if ddp is None or not torch.is_grad_enabled() or (sync is not None and sync.in_backward):
            return call.run(*local.args, **local.kwargs)
        with self._world.collective("a call of the model", computes=True):  # DDP exchanges its buckets' order
            through_ddp = self._options.static_graph or compiled.is_used()
            return (ddp if through_ddp else call.run)(*local.args, **local.kwargs)

    def hook_outputs(self, outputs: Any, inputs: list[tuple[str, Any]]) -> Any:
        """Hook a call's outputs, so that a backward from them brings DDP to each.

        Args:
            outputs: of a call, hooked already or not.
            inputs: what it was called with.
        """
        sync = self.sync
        if sync is None or sync.in_backward or not torch.is_grad_enabled():
            return outputs
        return sync.hook_outputs(outputs, inputs)

    def holds(self, module: nn.Module) -> bool:
        """Tell whether a module is inside."""
        return any(layer is module for layer in self._census.of(self.module).layers)

    def drop(self, make_global: bool = True) -> None:
        """Let DDP go: an instance alive when the interpreter exits aborts the process (torch 2.13)."""
        if self.sync is not None:
            self._backwards.remove(self.sync, make_global)
            self.sync.release_graph()
        self._ddp = None
        self.sync = self._fitting = None

    def fits(self, contents: ModuleContents) -> bool:
        """Tell whether DDP still stands for the module's parameters."""
        sync = self.sync
        if sync is None or sync.is_ddp_broken or sync.is_stale or list(map(_dtype, sync.parameters)) != sync.dtypes:
            return False
        trainable = contents.trainable
        if trainable is not self._fitting and trainable == sync.ids:
            self._fitting = trainable
        return trainable is self._fitting

    def _renew(self, contents: ModuleContents) -> None:
        if self.fits(contents):
            self._fewer = 0
            self._stood += 1
            if self._is_to_be_tried() or (self._returns > MOST_RETURNS and self._has_settled()):
                self._returns = 0
                self.drop()
                gc.collect()  # DDP is in cycles, and its hooks stay on the parameters as long as it does (torch 2.13)
                self._build()
            return
        trainable, sync = contents.trainable, self.sync
        is_whole = sync is not None and not (sync.is_ddp_broken or sync.is_stale)
        if not trainable:
            if not is_whole:
                del sync
                self._let_go_of_nodes()  # a backward of what it is frozen for may come by
            return
        if sync is not None and is_whole and trainable < sync.ids:
            # A net frozen for the other net's step (GANs) comes back; one that stays different gets a new DDP.
            self._fewer += 1
            if self._fewer <= _REBUILD_AFTER:
                return
        self._fewer = 0
        self._returns = 0 if self._stood >= _SETTLED else self._returns + (is_whole and trainable in self._stood_for)
        self._stood = 0
        del sync
        self._let_go_of_nodes()
        self._stood_for.add(trainable)
        if self._returns <= MOST_RETURNS:
            # BatchNorm's statistics are the ranks' own where the author wanted it so.
            compare_parameters(self._world, self.module, with_buffers=self._options.sync_batchnorm)
        self._build()

    def _let_go_of_nodes(self) -> None:
        sync = self.sync
        self.drop()
        if sync is not None and (sync.is_ddp_broken or sync.is_stale):
            self._conversions += sync.is_stale
            del sync
            gc.collect()  # likewise

    def _has_settled(self) -> bool:
        """Tell whether parts that took turns have stopped to, and no gradient is on its way."""
        is_time = self._stood >= _SETTLED and self._schedule.is_at_start
        return is_time and self.sync is not None and not self.sync.has_pending_gradients

    def _is_to_be_tried(self) -> bool:
        """Tell whether DDP is to be built with other values, and no gradient is on its way."""
        tuning = self._backwards.tuning
        if not tuning.is_on or self._built is None or not tuning.wants(self.module, self._built):
            return False
        return self._schedule.is_at_start and self.sync is not None and not self.sync.has_pending_gradients

    def _build(self) -> None:
        options, after = self._options, None
        elsewhere = parameters_elsewhere(self.module)
        apart = {id(p): p for p in (*sparse_parameters(self.module), *elsewhere) if p.requires_grad}
        sparse, flags = list(apart.values()), None
        dense = [p for p in self.module.parameters() if p.requires_grad and not any(p is other for other in sparse)]
        self._built = None
        # A hook that the script asked for is DDP's: it would silently be left out.
        is_worth_it = self._returns <= MOST_RETURNS or self._options.comm_hook is not None
        if dense and self._conversions <= MOST_CONVERSIONS and is_worth_it:
            self._built = self._backwards.tuning.built(self.module, described(self.module), dense)
            options, after = self._built.options, self._built.powersgd_after
            # DDP would compress what is no gradient, or take it for unused.
            has_ddp_options = options.comm_hook is not None or options.static_graph or options.find_unused_parameters
            flags = Flags(dense, self._world, with_buckets=not has_ddp_options)
            with self._world.collective("the making of DDP"):
                self._ddp = self._job.wrapping.wrap(
                    self.module,
                    swap.original_class(self.module),
                    flags.parameter,
                    without=[*sparse, *elsewhere],
                    **for_ddp(options),
                )
            # Armed by the backward that comes by, not by the forward: see ``gradients``.
            self._ddp.require_backward_grad_sync = False
            if flags.parameter is not None and self._world.size & (self._world.size - 1):
                # By itself it multiplies by 1 / N, which is rounded: a whole number would not stay one. This divides.
                self._ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)  # type: ignore[attr-defined]
        self.sync = GradientSync(dense, sparse, self._ddp, self._world, self._schedule, flags)
        if self._ddp is not None and flags is not None and flags.parameter is None:
            compress(options.comm_hook, self._ddp, self.sync.note_bucket_sent, after)
        self._backwards.add(self.sync)


def for_ddp(options: Options) -> dict[str, Any]:
    """Give what DDP is told of the options."""
    chosen = {name: getattr(options, name) for name in _FOR_DDP}
    if chosen["bucket_cap_mb"] == _DDPS_OWN:
        del chosen["bucket_cap_mb"]  # with a smaller first bucket, which leaves early
    return chosen


def parameters_elsewhere(module: nn.Module) -> list[nn.Parameter]:
    """Weights of another type of device than most are of, as large tables on the host: DDP refuses both at once."""
    sizes: collections.Counter[str] = collections.Counter()
    for parameter in module.parameters():
        sizes[parameter.device.type] += parameter.numel() if parameter.requires_grad else 0
    if len(sizes) < 2:
        return []
    kept = max(sizes, key=lambda kind: (bool(sizes[kind]), kind != "cpu", sizes[kind]))
    return [parameter for parameter in module.parameters() if parameter.device.type != kept]


def sparse_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Weights whose gradients are sparse; DDP cannot reduce them in a step that leaves them unused (torch 2.13)."""
    sparse_ids = set(map(id, noted_sparse()))
    of_layers = [
        cast(nn.Parameter, layer.weight)
        for layer in module.modules()
        if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and layer.sparse and layer.weight.requires_grad
    ]
    by_themselves = [p for p in module.parameters() if id(p) in sparse_ids and p.requires_grad]
    return list({id(p): p for p in (*of_layers, *by_themselves)}.values())
