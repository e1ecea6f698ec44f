"""The backwards of a session, and everybody who looks at gradients between them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..batch.pending import meet
from ..batch.world import World
from ..errors import DdpPatchError
from .assumption import Assumption
from .averages import align
from .conversions import Conversions
from .gradient_sync import GradientSync, Loss
from .loss_scale import LossScale
from .nested_backwards import NestedBackwards
from .parameter_hooks import ParameterHooks
from .pending_gradients import PendingGradients
from .tuning import Tuning


class BackwardPasses:
    """Tells every replica when a backward begins and ends, and when its gradients are looked at."""

    def __init__(self, world: World, groups: Any, tuning: Tuning) -> None:
        """Start without replicas.

        Args:
            world: the ranks that share the batch.
            groups: has the one in which DDP sends gradients, which nothing else may keep alive.
            tuning: times backwards.
        """
        self.tuning = tuning
        self._world, self._groups = world, groups
        self.loss_scale = LossScale(world.ledger)
        self.hooks = ParameterHooks(lambda: self.is_running, self._shares, world, self.loss_scale)
        self._assumption = Assumption(world, self.hooks)
        self._syncs: list[GradientSync] = []
        self.nested = NestedBackwards(world, self._syncs, self.loss_scale)
        self._outliving: list[GradientSync] = []  # let go while a graph of theirs was alive, which a backward came to
        self._removed: dict[int, weakref.ref[Any]] = {}  # parameters of those: such a graph gives a rank's share
        self._conversions = Conversions(self._converted)
        self.pending_gradients = PendingGradients()
        self.when_stepped: Callable[[Any], None] = lambda optimizer: None
        self.is_running = False
        self._stepping: Any = None  # the optimizer that is
        self._count = 0  # backwards so far, the same number on every rank
        self._optimized: weakref.WeakKeyDictionary[Any, set[int]] = weakref.WeakKeyDictionary()

    def add(self, sync: GradientSync) -> None:
        """Keep a replica's gradients global from now on."""
        self._syncs.append(sync)
        self._conversions.start()
        for parameter in sync.all:
            self.hooks.adopt(parameter)

    def remove(self, sync: GradientSync, make_global: bool) -> None:
        """Let a replica's gradients go, global for the last time; or as they are, when the program is over."""
        if make_global:
            self.pending_gradients.make_global(sync)
        else:
            sync.has_pending_gradients = False
            self.pending_gradients.note(sync)
        self._syncs.remove(sync)
        sync.when_outlived = self._outlived if make_global else None
        self._removed = {key: reference for key, reference in self._removed.items() if reference() is not None}
        self._removed.update((id(parameter), weakref.ref(parameter)) for parameter in sync.all)
        if not self._syncs:
            self._conversions.stop()

    def _outlived(self, sync: GradientSync) -> None:
        if self.is_running and not any(sync is other for other in self._outliving):  # not for torch.autograd.grad
            self._outliving.append(sync)

    def _converted(self, parameter: Any) -> None:
        for sync in self._syncs:
            if id(parameter) in sync.ids:
                sync.note_converted_parameter()

    def is_replica_parameter(self, tensor: Any) -> bool:
        """Tell whether a tensor is a parameter that some replica keeps global."""
        return any(id(tensor) in sync.ids for sync in self._syncs)

    def was_replica_parameter(self, tensor: Any) -> bool:
        """Tell whether it is one, or was when a graph that is still alive may have been made."""
        reference = self._removed.get(id(tensor))
        return self.is_replica_parameter(tensor) or (reference is not None and reference() is tensor)

    def _shares(self, tensor: Any) -> bool:
        """Tell whether the backward that runs gives a parameter this rank's share of its gradient."""
        return self.is_replica_parameter(tensor) or any(id(tensor) in sync.ids for sync in self._outliving)

    @property
    def is_busy(self) -> bool:
        """Whether autograd is at work for the script."""
        return self.is_running or self.hooks.is_in_autograd_grad

    def backward(self, run: Callable[[], None], all_leaves: bool, recorded: bool, reduction: Loss | None) -> None:
        """Carry out a backward of the script.

        Args:
            run: has autograd do it.
            all_leaves: it accumulates into every leaf it reaches, unlike ``backward(inputs=...)``.
            recorded: with ``create_graph``.
            reduction: the loss that it starts from, if that was not summed yet.
        """
        if self.tuning.is_on:
            self.tuning.begin()
        source = None if reduction is None else reduction.source
        for sync in self._syncs:
            hooked = self.hooks.any and self.hooks.on_any(sync.all)
            sync.begin(all_leaves and not recorded and not hooked, self._stepping is not None, reduction, source)
        # Of a sum of losses, only a part of the gradients would have to be corrected.
        counted = None if reduction is None else reduction.multiple_of
        parts = [] if reduction is None or counted is not None else reduction.reductions
        if parts and any(part.has_count and part.is_open for part in parts):
            meet(parts)  # each would be waited for, one by one
        assumed = None
        if all_leaves and counted is not None and counted.has_count:
            assumed = self._assumption.begin(self._syncs, counted, source)
        self.is_running, failed, begun = True, True, self._collectives()
        self._count += 1
        try:
            with self._world.collective("a backward", computes=True):
                rebuilt = [sync.rebuild() for sync in self._syncs]
                begun = self._collectives() if any(rebuilt) else begun
                run()
            failed = False
            self._count_buckets(self._collectives() - begun)
        except DdpPatchError:
            raise
        except Exception as error:
            # How far DDP came belongs to it: a bucket that some ranks began would meet the next one of the others.
            buckets = self._collectives() - begun
            self._world.check_all_failed(error, f"backward {self._count} (after {buckets} buckets of gradients)")
            raise
        finally:
            self.is_running = False
            if self.loss_scale.active:
                self.loss_scale.end()
            self._end(failed, recorded)
            if counted is not None:
                counted.assumed = False
        if assumed is not None and counted is not None:
            self._assumption.correct(assumed, counted, source)
        if reduction is not None:
            reduction.let_go()
        if self.tuning.is_on:
            self.tuning.end()
        self._world.dealt.check(self._world)

    @contextmanager
    def grad(self) -> Iterator[None]:
        """Surround ``torch.autograd.grad``, which accumulates nowhere."""
        before, self.hooks.is_in_autograd_grad = self.hooks.is_in_autograd_grad, True
        try:
            yield
        finally:
            self.hooks.is_in_autograd_grad = before

    def _collectives(self) -> int:
        """Count those that DDP has begun; 0 if its backend does not (torch 2.13)."""
        try:
            return int(self._groups.group._get_sequence_number_for_group())
        except RuntimeError:
            return 0

    def _count_buckets(self, sent: int) -> None:
        if size := sum([sync.bytes for sync in self._syncs if sync.is_armed and sync.was_reduced]):
            self._world.ledger.count("gradient bucket", size, sent)

    def _end(self, failed: bool, recorded: bool) -> None:
        late, self._outliving = self._outliving, []
        for sync in self._syncs:
            sync.end(failed, recorded)
            self.nested.give(sync, failed)
            self.pending_gradients.note(sync)
        for sync in () if failed else late:
            sync.has_pending_gradients = True
            sync.make_global()
        try:
            if not failed:
                self._call_hooks([*self._syncs, *late], recorded)  # which may look at any gradient
        finally:
            if self.hooks.any:
                self.hooks.forget()  # one that raised: what it left must not meet the next backward
        if self._stepping is not None and not failed:
            self._align(self._stepping)  # a closure's

    def _call_hooks(self, syncs: list[GradientSync], recorded: bool) -> None:
        if not self.hooks.any:
            return
        for sync in syncs:
            self.hooks.release(sync.all, recorded)
        for sync in syncs:
            if self.hooks.after_any(sync.all):
                self.pending_gradients.make_global(sync)
                self.hooks.release_after(sync.all)

    # --- optimizers, which look at gradients ------------------------------------------------------------------------

    def before_step(self, optimizer: Any, has_closure: bool) -> None:
        """An optimizer is about to step: what it reads must be global."""
        self._stepping = optimizer
        ids = self._ids_of(optimizer)
        for sync in self._syncs:
            if not sync.ids.isdisjoint(ids):
                self.pending_gradients.make_global(sync)
                sync.schedule.step()
        self._align(optimizer)
        if self.loss_scale.active and not has_closure:
            self.loss_scale.before_step(optimizer)

    def after_step(self, optimizer: Any) -> None:
        """A step ended. The backwards of its closure, if it has one, were each looked at."""
        self._stepping = None
        if self.loss_scale.active:
            self.loss_scale.after_step()
        self.when_stepped(optimizer)
        ids = self._ids_of(optimizer)
        for sync in self._syncs:
            if not sync.ids.isdisjoint(ids):
                sync.schedule.forget_cycle()

    def forget_param_groups(self, optimizer: Any) -> None:
        """Forget the parameters of an optimizer, which got others."""
        self._optimized.pop(optimizer, None)

    def make_global(self) -> None:
        """Make every gradient global."""
        for sync in self._syncs:
            self.pending_gradients.make_global(sync)

    def _align(self, optimizer: Any) -> None:
        """Keep parameters alike that no replica keeps global, since every rank computes all of their gradients."""
        if self._world.accelerated:
            alone = self._ids_of(optimizer).difference(*(sync.ids for sync in self._syncs))
            if alone:
                parameters = [p for group in optimizer.param_groups for p in group["params"]]
                align([parameter for parameter in parameters if id(parameter) in alone], self._world)

    def _ids_of(self, optimizer: Any) -> set[int]:
        ids = self._optimized.get(optimizer)
        if ids is None:
            ids = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            self._optimized[optimizer] = ids
        return ids
