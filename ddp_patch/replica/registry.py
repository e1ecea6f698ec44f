"""The replicas of a session, by the modules that they stand for."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from torch import nn

from ..batch.world import World
from ..calling.calls import described
from ..calling.census import Census
from ..gradients.backward_passes import BackwardPasses
from ..job.job import Job
from ..options import Options
from .replica import Replica
from .trained import Trained

_OUTERMOST = "the outermost module whose parameters are optimized and which was called on a batch"


class Registry:
    """Makes replicas, finds the one that keeps a module's gradients global, and lets go of all."""

    def __init__(
        self,
        options: Options,
        job: Job,
        world: World,
        backwards: BackwardPasses,
        census: Census,
        trained: Trained,
        knowing: Sequence[Any],
    ) -> None:
        """Start without any replica.

        Args:
            options: of the session.
            job: whose ranks they join.
            world: the ranks that share the batch.
            backwards: are told of each replica's gradients.
            census: of what modules hold.
            trained: what the optimizers train.
            knowing: who else lets go of the layers of a model that is over.
        """
        self._replicas: dict[int, Replica] = {}
        self._over: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()  # and not trained since
        self._census = census
        self._trained = trained
        self._knowing = knowing
        self._made_with: tuple[Any, ...] = options, job, world, backwards, census
        self._world = world

    def make(self, module: nn.Module, why: str = _OUTERMOST) -> Replica:
        """Give a module a replica; replicas of modules inside it are dropped, and those of models that are over.

        Every rank comes here.
        """
        if self._over.get(id(module)) is not module:  # several that are over may be evaluated by turns
            self._retire()
        inner = {id(child) for child in module.modules()} - {id(module)}
        for key in [key for key in self._replicas if key in inner]:
            self._replicas.pop(key).drop()
        replica = Replica(module, *self._made_with)
        self._replicas[id(module)] = replica
        self._world.ledger.replicas[described(module)] = why
        return replica

    def _retire(self) -> None:
        """Let go of those that no optimizer trains any more, on no rank: models of folds and trials that are over.

        One that is called again is made again.
        """
        replicas, trained = list(self._replicas.values()), self._trained.of_living()
        if not replicas:
            return
        untrained = [trained.isdisjoint(map(id, replica.module.parameters())) for replica in replicas]
        # An optimizer in a cycle goes when the garbage collector of a rank comes by.
        of_ranks = [answer[0] for answer in self._world.share([untrained])]
        for replica, flags in zip(replicas, zip(*of_ranks, strict=True), strict=True):
            if all(flags):
                del self._replicas[id(replica.module)]
                replica.drop()
                self._over[id(replica.module)] = replica.module
                for knows in self._knowing:
                    knows.forget(list(replica.module.modules()))

    def trains(self, optimizer: Any) -> None:
        """An optimizer is new, or has other parameters: a model that was over may be trained again."""
        ids = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for key, module in list(self._over.items()):
            if not ids.isdisjoint(map(id, module.parameters())):
                del self._over[key]

    def modules(self) -> list[nn.Module]:
        """Give those that have a replica."""
        return [replica.module for replica in self._replicas.values()]

    def ids(self) -> set[int]:
        """Identities of the parameters of all of them."""
        return {id(p) for replica in self._replicas.values() for p in self._census.of(replica.module).parameters}

    def of(self, module: nn.Module) -> Replica | None:
        """The replica that a module was given, if any."""
        return self._replicas.get(id(module))

    def keeping(self, module: nn.Module) -> Replica | None:
        """The replica that keeps a module's gradients global: its own, or that of a module that holds what it trains.

        That is one around it, or, where a script makes a ``Sequential`` of some layers in each step, the first of them.
        """
        replica = self._replicas.get(id(module))
        if replica is not None:
            return replica
        around = next((outer for outer in self._replicas.values() if outer.holds(module)), None)
        ids = self._ids(module)
        if around is not None or not ids:
            return around
        return next((other for other in self._replicas.values() if ids <= self._ids(other.module)), None)

    def _ids(self, module: nn.Module) -> set[int]:
        return {id(parameter) for parameter in self._census.of(module).parameters}

    def close(self, make_global: bool) -> None:
        """Let DDP go.

        Args:
            make_global: the script goes on, so its gradients are made global; no collective otherwise.
        """
        for replica in self._replicas.values():
            replica.drop(make_global)
        self._replicas.clear()
