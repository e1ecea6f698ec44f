"""What the script trains: the parameters of its optimizers."""

from __future__ import annotations

import functools
import weakref
from typing import Any

from torch.utils.weak import WeakIdKeyDictionary

from ..gradients.grad_watch import grad_of
from .by_hand import ByHand


class Trained:
    """Knows the parameters of the optimizers that are alive."""

    def __init__(self) -> None:
        """Start with none."""
        # By identity, in turn: sets have another order on every rank.
        self._optimizers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._ids: set[int] | None = None
        self._living: list[weakref.ref[Any]] = []  # the parameters whose these are
        self.has_optimizers = False  # of the script's, or had some
        self._has_stepped = False
        self._alone: Any = WeakIdKeyDictionary()  # what has gradients, though no module that was called owns it

    def knows(self, optimizer: Any) -> bool:
        """Tell whether an optimizer was added."""
        return self._optimizers.get(id(optimizer)) is optimizer

    def add(self, optimizer: Any) -> None:
        """Remember an optimizer, or look at its groups anew."""
        self._optimizers[id(optimizer)] = optimizer
        self._ids = None
        self.has_optimizers = self.has_optimizers or not isinstance(optimizer, ByHand)
        self._has_stepped = self._has_stepped or isinstance(optimizer, ByHand)  # known by a step

    def optimizers(self) -> list[Any]:
        """Those of the script that are alive."""
        return [optimizer for optimizer in self._optimizers.values() if not isinstance(optimizer, ByHand)]

    def parameters(self) -> list[Any]:
        """The parameters, in their order and that of the optimizers."""
        groups = [group for optimizer in self._optimizers.values() for group in optimizer.param_groups]
        return list({id(parameter): parameter for group in groups for parameter in group["params"]}.values())

    def of_living(self) -> set[int]:
        """Identities of the parameters, after groups of optimizers have changed, or optimizers gone."""
        self._ids = None
        return self.ids()

    def rates(self) -> list[float]:
        """The learning rates of their groups, where these have one."""
        groups = [group for optimizer in self._optimizers.values() for group in optimizer.param_groups]
        return [float(group["lr"]) for group in groups if group.get("lr") is not None]

    def stepped(self, optimizer: Any, found: set[int]) -> None:
        """An optimizer has stepped, while every call of a module was looked at.

        Args:
            optimizer: which did.
            found: identities of the parameters of the modules that were called.
        """
        self._has_stepped = True
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in found and grad_of(parameter) is not None:
                    self._alone[parameter] = True

    def are_all_in(self, found: set[int]) -> bool:
        """Tell whether no module has to be looked for any more: of a temperature that a script holds, there is none.

        Not before a step: a method of a model that was found may call its modules.

        Args:
            found: identities of the parameters of the modules that were called.
        """
        ids = self.of_living()  # an optimizer that has gone since would have one rank look on, and another not
        return self._has_stepped and bool(ids) and ids.difference(map(id, self._alone)) <= found

    def ids(self) -> set[int]:
        """Identities of the parameters that live: others may have those of the dead.

        Not of living optimizers: when one of a cycle of references goes differs between ranks.
        """
        if self._ids is None:
            ids = self._ids = set[int]()
            self._living = []
            for parameter in self.parameters():
                ids.add(id(parameter))
                self._living.append(weakref.ref(parameter, functools.partial(_gone, ids, id(parameter))))
        return self._ids


def _gone(ids: set[int], key: int, reference: Any) -> None:
    ids.discard(key)
