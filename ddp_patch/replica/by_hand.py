"""What a script trains without any optimizer, as tutorials and older examples do: ``p -= rate * p.grad``."""

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

    These are known by what happens to them between a backward that reached them and the next call of a module.
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

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Give them as an optimizer does."""
        return [{"params": list(self._parameters.keys())}]

    def note_leaves(self, reached: Iterable[Any]) -> None:
        """A gradient is computed for leaves: remember the parameters among them, if there never was an optimizer.

        Args:
            reached: by it, in an order that the graph gives; not asked for where there was an optimizer.
        """
        if self._models.trained.has_optimizers or not self._is_scripts():
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


def _norm(leaf: nn.Parameter) -> float:
    values = leaf.detach()
    norm = (values.abs() if values.is_complex() else values).double().norm()
    return float(norm.nan_to_num().item())
