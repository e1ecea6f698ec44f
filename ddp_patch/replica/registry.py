"""The replicas of a session, by the modules that they stand for."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..batch.world import World
from ..calling.calls import described
from ..calling.census import Census
from ..gradients.backwards import Backwards
from ..job.job import Job
from ..options import Options
from .replica import Replica

_OUTERMOST = "outermost owner of optimized parameters that was called on a batch"


class Registry:
    """Makes replicas, finds the one that keeps a module's gradients global, and lets go of all."""

    def __init__(self, options: Options, job: Job, world: World, backwards: Backwards, census: Census) -> None:
        """Start without any replica.

        Args:
            options: of the session.
            job: whose ranks they join.
            world: the ranks that share the batch.
            backwards: are told of each replica's gradients.
            census: of what modules hold.
        """
        self._replicas: dict[int, Replica] = {}
        self._made_with: tuple[Any, ...] = options, job, world, backwards, census
        self._world = world

    def make(self, module: nn.Module, why: str = _OUTERMOST) -> Replica:
        """Give a module a replica; replicas of modules inside it are dropped."""
        inner = {id(child) for child in module.modules()} - {id(module)}
        for key in [key for key in self._replicas if key in inner]:
            self._replicas.pop(key).drop()
        replica = Replica(module, *self._made_with)
        self._replicas[id(module)] = replica
        self._world.ledger.replicas[described(module)] = why
        return replica

    def retire(self, trained: set[int]) -> list[nn.Module]:
        """Let go of those that no optimizer trains any more, on no rank: models of folds and trials that are over.

        One that is called again is made again. Every rank comes here, about to make another one.

        Args:
            trained: identities of the parameters that this rank's optimizers train.

        Returns:
            their modules.
        """
        replicas = list(self._replicas.values())
        retired: list[nn.Module] = []
        if not replicas:
            return retired
        own = [trained.isdisjoint(map(id, replica.module.parameters())) for replica in replicas]
        # An optimizer in a cycle goes when the garbage collector of a rank comes by.
        of_ranks = [given[0] for given in self._world.share([own])]
        for replica, flags in zip(replicas, zip(*of_ranks, strict=True), strict=True):
            if all(flags):
                del self._replicas[id(replica.module)]
                replica.drop()
                retired.append(replica.module)
        return retired

    def modules(self) -> list[nn.Module]:
        """Give those that have a replica."""
        return [replica.module for replica in self._replicas.values()]

    def parameters(self) -> list[torch.Tensor]:
        """Give the parameters of all of them."""
        return [parameter for replica in self._replicas.values() for parameter in replica.module.parameters()]

    def of(self, module: nn.Module) -> Replica | None:
        """The replica that a module was given, if any."""
        return self._replicas.get(id(module))

    def keeping(self, module: nn.Module) -> Replica | None:
        """The replica that keeps a module's gradients global: its own, or that of a module around it."""
        own = self._replicas.get(id(module))
        if own is not None:
            return own
        return next((outer for outer in self._replicas.values() if outer.holds(module)), None)

    def close(self, settle: bool) -> None:
        """Let DDP go.

        Args:
            settle: the script goes on, so its gradients are made global; no collective otherwise.
        """
        for replica in self._replicas.values():
            replica.drop(settle)
        self._replicas.clear()
