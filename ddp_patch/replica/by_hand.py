"""What a script trains without an optimizer, as tutorials and older examples do: ``p -= rate * p.grad``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from ..batch.world import World
from ..errors import GradientError
from ..ledger import script_line
from .discovery import Discovery


class ByHand:
    """Stands for the optimizer that a script does without: knows the parameters that it changes by itself.

    These are known by what happens to them between a backward that reached them and the next call of a module; beside
    optimizers, between gradients of them, the 1st and 2nd of which are looked at, the 4th and 5th, the 8th and 9th ...
    """

    def __init__(
        self,
        world: World,
        models: Any,
        discovery: Discovery,
        in_lockstep: Callable[[], bool],
        adopt: Callable[[Any], None] | None,
        greet: Callable[[], None],
    ) -> None:
        """Know of none.

        Args:
            world: the ranks, which come here together.
            models: of the script, that know what is trained.
            discovery: of them.
            in_lockstep: tells whether all ranks do what this one does.
            adopt: takes over an optimizer, which this stands for; None where ranks have rows of their own.
            greet: says what became the model.
        """
        self._world = world
        self._models = models
        self._discovery = discovery
        self._in_lockstep = in_lockstep
        self._adopt = adopt
        self._greet = greet
        self._parameters: Any = WeakIdKeyDictionary()  # in the order in which they were met
        self._norms: Any = WeakIdKeyDictionary()  # of what a backward reached, since the last call of a module
        self._runs = _Runs()
        self._asked = 0  # gradients of parameters that were asked for beside optimizers

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Give them as an optimizer does."""
        return [{"params": list(self._parameters.keys())}]

    def is_to_look(self, steps: int) -> bool:
        """Tell whether a backward is to be looked at; asked in each.

        Args:
            steps: of optimizers, so far.
        """
        return not self._models.trained.has_optimizers or (self._is_scripts() and self._runs.is_long(steps))

    def note_leaves(self, reached: Iterable[Any]) -> None:
        """A gradient is computed for leaves: remember the parameters among them that no optimizer has.

        Args:
            reached: by it, in an order that the graph gives.
        """
        if self._models.trained.has_optimizers:
            if self._is_scripts() and self._adopt is not None:  # or ranks have rows of their own
                self._look_beside(list(reached), self._adopt)
            return
        if not self._is_scripts():
            return
        if self._parameters:
            self._greet()
        # A rank's rows may need less of a model's parameters than another's.
        owned = self._models.registry.ids() if self._adopt else ()
        for leaf in reached:
            if isinstance(leaf, nn.Parameter) and not (
                leaf in self._parameters or leaf in self._norms or id(leaf) in owned
            ):
                self._norms[leaf] = _norm(leaf)
        if self._norms:
            self._discovery.start()
            self._discovery.at_call = self._look

    def _look_beside(self, reached: list[Any], adopt: Callable[[Any], None]) -> None:
        """Take over what was changed since it was last looked at.

        Which optimizers and models are alive, each rank's collector has its own say in: what rank 0 sees counts.
        """
        found = [leaf for leaf in reached if isinstance(leaf, nn.Parameter)]
        if not found:
            return
        self._asked += 1
        if not _is_looked_at(self._asked):
            return
        known = self._models.trained.ids() | self._models.registry.ids()
        norms = [_norm(leaf) for leaf in found]
        others = [at for at, leaf in enumerate(found) if id(leaf) not in known]
        has_changed = any(self._norms.get(found[at], norms[at]) != norms[at] for at in others)
        has_changed, others = self._world.share([(has_changed, others)])[0][0]
        self._norms.update(zip(found, norms, strict=True))
        if has_changed:
            for at in others:
                self._parameters[found[at]] = True
            self._norms.clear()
            adopt(self)

    def _is_scripts(self) -> bool:
        return not self._models.is_at_work() and self._in_lockstep()

    def _look(self) -> None:
        """A module is called.

        Raises:
            GradientError: where ranks have rows of their own, and would train apart.
        """
        if not self._is_scripts():
            return
        self._discovery.at_call = None
        if not self._models.trained.has_optimizers:
            self._compare()
        self._norms.clear()

    def _compare(self) -> None:
        has_changed = any(_norm(leaf) != norm for leaf, norm in self._norms.items())
        if self._adopt is None:
            if has_changed:
                raise GradientError(
                    f"{script_line()}: parameters were changed after a backward, and view='local' averages gradients "
                    "for optimizers, of which there is none: each rank would train on its own rows. Write "
                    "torch.optim.SGD(model.parameters(), lr), or view='global'; or model.requires_grad_(False), if "
                    "nothing is trained."
                )
        elif any(answer[0] for answer in self._world.share([has_changed])):
            for leaf in self._norms:
                self._parameters[leaf] = True
            self._adopt(self)
            return
        if not self._models.trained.ids():
            self._models.rest()


class _Runs:
    """Counts backwards between optimizer steps: with more of them than there ever were, something else is trained."""

    def __init__(self) -> None:
        """Start with none."""
        self._steps = 0
        self._count = self._usual = 0

    def is_long(self, steps: int) -> bool:
        """Tell whether a backward is far beyond the usual number of them, and is to be looked at.

        Args:
            steps: of optimizers, so far.
        """
        if steps != self._steps:
            self._steps, self._usual, self._count = steps, max(self._usual, self._count), 0
        self._count += 1
        return self._count > 2 * self._usual + 2 and _is_looked_at(self._count)


def _is_looked_at(count: int) -> bool:
    """Tell whether a number is a power of two, or one more."""
    return count & (count - 1) == 0 or (count - 1) & (count - 2) == 0


def _norm(leaf: nn.Parameter) -> float:
    values = leaf.detach()
    norm = (values.abs() if values.is_complex() else values).double().norm()
    return float(norm.nan_to_num().item())
