"""What a script trains without any optimizer, as tutorials and older examples do: ``p -= rate * p.grad``."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from ..batch.world import World
from .discovery import Discovery

_AT_ONCE = 1 << 22  # numbers that are put into words at once


class ByHand:
    """Stands for the optimizer that a script does without: knows the tensors that it changes by itself."""

    def __init__(
        self,
        world: World,
        models: Any,
        discovery: Discovery,
        in_lockstep: Callable[[], bool],
        adopt: Callable[[Any], None],
        greet: Callable[[], None],
        *,
        of_own_rows: bool,
    ) -> None:
        """Know of none.

        Args:
            world: the ranks, which come here together.
            models: of the script, that know what is trained.
            discovery: of them.
            in_lockstep: tells whether all ranks do what this one does.
            adopt: takes over an optimizer, which this stands for.
            greet: says what became the model.
            of_own_rows: gradients are of each rank's rows, before somebody averages them.
        """
        self._world = world
        self._models = models
        self._discovery = discovery
        self._in_lockstep = in_lockstep
        self._adopt = adopt
        self._greet = greet
        self._sees = self._take_alike if of_own_rows else self._await_change
        self._known: Any = WeakIdKeyDictionary()  # in the order in which they were met
        self._before: Any = WeakIdKeyDictionary()  # what a parameter held when gradients came to it, or None: not kept

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Give them as an optimizer does."""
        return [{"params": list(self._known.keys())}]

    def comes_to(self, reached: Iterable[Any]) -> None:
        """A gradient is computed for leaves: see whether the script trains them, if it never had an optimizer.

        Args:
            reached: by it, in an order that the graph gives; not asked for where there was an optimizer.
        """
        if not self._models.trained.has_optimizers and self._is_scripts():
            if self._known:
                self._greet()
            self._sees([leaf for leaf in reached if leaf not in self._known])

    def _is_scripts(self) -> bool:
        return not self._models.is_at_work() and self._in_lockstep()

    def _take(self, new: Iterable[Any]) -> None:
        for leaf in new:
            self._known[leaf] = True
        self._adopt(self)

    # --- every rank has all rows ------------------------------------------------------------------------------------

    def _await_change(self, new: Sequence[Any]) -> None:
        """Remember parameters: what the script changes before it calls a module again, it trains."""
        self._before.clear()
        owned = self._models.registry.ids()  # a rank's rows may need less of these than another's
        new = [leaf for leaf in new if isinstance(leaf, nn.Parameter) and id(leaf) not in owned]
        if new:
            least = min(new, key=Tensor.numel)  # the one to be copied
            self._before.update((leaf, leaf.detach().clone() if leaf is least else None) for leaf in new)
            self._discovery.start()
            self._discovery.at_call = self._look

    def _look(self) -> None:
        """A module is called."""
        if not self._is_scripts():
            return
        self._discovery.at_call = None
        if self._models.trained.has_optimizers:
            return
        has_changed = any(was is not None and not torch.equal(was, now) for now, was in self._before.items())
        if any(given[0] for given in self._world.share([has_changed])):
            self._take(self._before.keys())
        elif not self._models.trained.ids():
            self._models.rest()
        self._before.clear()

    # --- each rank has its own --------------------------------------------------------------------------------------

    def _take_alike(self, new: Sequence[Any]) -> None:
        """Take over what is the same on every rank, whose rows give it different gradients."""
        words = [_word(leaf) for leaf in new]
        of_ranks = [given[0] for given in self._world.share([words])]
        if len({len(own) for own in of_ranks}) == 1:
            alike = [leaf for leaf, *its in zip(new, *of_ranks, strict=True) if len(set(its)) == 1]
        else:  # a rank's rows may need less: what there is once, as the first rank met it
            once = [word for word in of_ranks[0] if all(own.count(word) == 1 for own in of_ranks)]
            alike = [new[words.index(word)] for word in once]
        if alike:
            self._take(alike)


def _word(leaf: Tensor) -> tuple[Any, ...]:
    checked = 0
    if leaf.layout is torch.strided and leaf.device.type != "meta":
        for part in leaf.detach().reshape(-1).split(_AT_ONCE):
            checked = zlib.crc32(part.cpu().contiguous().view(torch.uint8).numpy().tobytes(), checked)
    return tuple(leaf.shape), str(leaf.dtype), checked
