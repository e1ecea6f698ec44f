"""Batches that a forward leaves in attributes of its layers, such as attention weights: they come out as outputs do.

What an earlier call left there is withheld while a forward computes rows: it is of other rows. A forward that looks at
it, as at a state, does not run on rows.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..errors import BatchError
from ..structure import PLAIN, leaves
from .swap import original_class

Place = tuple[int, str]  # the position of a layer in its module, and the name of an attribute
_MISSING = object()


class AttributeReadError(BatchError):
    """A forward on rows looked at what an earlier call had left in an attribute."""


class Withheld(Tensor):
    """Stands in an attribute for what is withheld: nothing can be told of it but that it is a tensor."""

    attribute: str

    @staticmethod
    @functools.cache
    def of(attribute: str) -> Withheld:
        """Give the one for an attribute."""
        withheld: Withheld = torch.empty(0, device="cpu").as_subclass(Withheld)
        withheld.attribute = attribute
        return withheld

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse whatever is asked.

        Raises:
            AttributeReadError: always.
        """
        names = [leaf.attribute for _, leaf in leaves((args, kwargs)) if type(leaf) is Withheld]
        raise AttributeReadError(
            f"its forward looks at what an earlier call left in {names[0] if names else 'an attribute'}, before it "
            "writes there. Give it as an argument, and return what is to come next"
        )

    def __deepcopy__(self, memo: Any) -> Withheld:
        """Stay the same in a copy of the layer."""
        return self


class KeptAttributes:
    """Those of one module's layers that its forward leaves batches in."""

    _at_work: ClassVar[set[tuple[int, str]]] = set()  # by the identity of the layer

    def __init__(self, layers: Sequence[nn.Module], places: Iterable[Place]) -> None:
        """Note where they are.

        Args:
            layers: of the module, itself the first.
            places: where its forward was seen to leave batches.
        """
        self._layers = layers
        self.places = tuple(places)
        self._values: dict[Place, Any] = {}

    @classmethod
    def is_expected(cls, layer: nn.Module, name: str) -> bool:
        """Tell whether an attribute is one that a forward at work was seen to leave batches in."""
        return bool(cls._at_work) and (id(layer), name) in cls._at_work

    def described(self) -> str:
        """Name them."""
        return ", ".join(dict.fromkeys(_described(self._layers[number], name) for number, name in self.places))

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Surround a forward: the attributes hold afterwards what they held before, and this has what it left there."""
        mine = {(id(self._layers[number]), name) for number, name in self.places} - KeptAttributes._at_work
        KeptAttributes._at_work |= mine
        stood = self._held()
        placed = {place: self._in_place_of(place, value) for place, value in stood.items()}
        self._hold(placed)
        try:
            yield
            self._values = {place: value for place, value in self._held().items() if value is not placed[place]}
        finally:
            self._hold(stood)
            KeptAttributes._at_work -= mine

    def take(self, before: dict[Place, Any]) -> None:
        """Take what a forward has left there.

        Args:
            before: what they are to hold instead.
        """
        self._values = self._held()
        self._hold(before)

    def with_values(self, outputs: Any) -> Any:
        """Give the outputs of the forward along with what it left in attributes, if it did."""
        values = {place: value for place, value in self._values.items() if value is not _MISSING}
        return (outputs, values) if values else outputs

    def written(self, result: Any) -> Any:
        """Write to the attributes what the forward left there, and give its outputs.

        Args:
            result: what ``with_values`` gave, with batches of its rows.
        """
        if all(value is _MISSING for value in self._values.values()):
            return result
        outputs, values = result
        self._write(values)
        return outputs

    @contextmanager
    def as_before(self) -> Iterator[None]:
        """Surround what finds the attributes as they were before the forward, and write to them what was taken."""
        try:
            yield
        finally:
            self._write(self._values)

    def _write(self, values: dict[Place, Any]) -> None:
        for (number, name), value in values.items():
            layer = self._layers[number]
            if type(vars(layer).get(name)) is type(value):  # nothing that a forward may branch on has changed
                vars(layer)[name] = value
            else:  # past what the author's class makes of it, which it did already
                nn.Module.__setattr__(layer, name, value)

    def _held(self) -> dict[Place, Any]:
        return {(number, name): vars(self._layers[number]).get(name, _MISSING) for number, name in self.places}

    def _hold(self, values: dict[Place, Any]) -> None:
        for (number, name), value in values.items():
            namespace = vars(self._layers[number])
            if value is not _MISSING:
                namespace[name] = value
            else:
                namespace.pop(name, None)

    def _in_place_of(self, place: Place, value: Any) -> Any:
        if value is _MISSING or type(value) in PLAIN:
            return value
        return Withheld.of(_described(self._layers[place[0]], place[1]))


def _described(layer: nn.Module, name: str) -> str:
    return f"{original_class(layer).__name__}.{name}"


def left_by(layers: Sequence[nn.Module], before: Sequence[dict[str, Any]]) -> KeptAttributes:
    """Take what a forward on batches has left in attributes, which hold then what they held before.

    Args:
        layers: of the module, itself the first.
        before: the attributes of each of them, before the call.
    """
    # None yet: a forward may ask for the type of what is withheld, or catch the error, and nobody would see that.
    places: list[Place] = []
    kept = KeptAttributes(layers, places)
    kept.take({(number, name): before[number].get(name, _MISSING) for number, name in places})
    return kept
