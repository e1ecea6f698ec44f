"""Attributes of layers in which a forward leaves batches for the script: ``self.attention = weights``.

They are outputs that the script takes from there. A forward on rows leaves its rows, and batches are put in their place
before the script can look. While it runs, its layers hold what they held before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from ..batch.tensor import BatchTensor
from ..structure import leaves

Place = tuple[int, str]  # number of a layer among those of a module, and name of its attribute
Noted = Callable[[nn.Module, str, Any, Any, Callable[[], bool]], None]
_MISSING = object()


class KeptAttributes:
    """Those of one call on rows."""

    def __init__(self, layers: Sequence[nn.Module], places: Collection[Place]) -> None:
        """Note what they hold before it.

        Args:
            layers: of the module that is called, itself the first.
            places: in which its forward leaves batches.
        """
        self._layers = layers
        self._before = {at: vars(layers[at[0]]).get(at[1], _MISSING) for at in places} if places else {}
        self._is_over = False
        # Of layers and names: what is set there meanwhile is not what it holds afterwards.
        self.identities = frozenset([(id(layers[number]), name) for number, name in places] if places else ())

    def with_values(self, outputs: Any, own: Callable[[Any], Any] = lambda value: value) -> Any:
        """Give the outputs of the forward along with what it left, which is taken away.

        Args:
            outputs: of the forward.
            own: copies what it left of the script's tensors, of which this rank would write to its rows alone.
        """
        if not self._before:
            return outputs
        now = {place: vars(self._layers[place[0]]).get(place[1], _MISSING) for place in self._before}
        self.put_back()
        return outputs, {place: own(value) for place, value in now.items() if value is not self._before[place]}

    def put_back(self) -> None:
        """Let them hold what they held before the call, unless that was done."""
        if not self._is_over:
            _put(self._layers, self._before)
        self._is_over = True

    def write_back(self, result: Any, noted: Noted) -> Any:
        """Leave batches where the forward left its rows, and give its outputs.

        Args:
            result: what ``with_values`` gave, with batches of its rows.
            noted: is told of a layer, a name, what it held, what it holds, and whether a call is at work.
        """
        if not self._before:
            return result
        outputs, values = result
        for (number, name), value in values.items():
            layer, before = self._layers[number], self._before[number, name]
            vars(layer)[name] = value
            if not _are_alike(before, value):
                noted(layer, name, None if before is _MISSING else before, value, _is_at_work)
        return outputs


def _put(layers: Sequence[nn.Module], values: dict[Place, Any]) -> None:
    for (number, name), value in values.items():
        if value is not _MISSING:
            vars(layers[number])[name] = value
        else:
            vars(layers[number]).pop(name, None)


class LayerAttributes:
    """What layers hold before a call on batches, which may leave some in others."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        """Note it."""
        self._layers = layers
        self._before = [{**vars(layer)} for layer in layers]

    def places_of(self, batches: Collection[int]) -> tuple[Place, ...]:
        """Tell where batches are now that were not there.

        Args:
            batches: identities of those that may be kept.
        """
        return tuple(
            (number, name)
            for number, (layer, before) in enumerate(zip(self._layers, self._before, strict=True))
            for name, value in vars(layer).items()
            if value is not before.get(name, _MISSING) and _holds_no_others(value, batches)
        )

    def along_with(self, outputs: Any, places: Collection[Place]) -> Any:
        """Give the outputs of the forward along with what it left in these places."""
        return (outputs, self._values(places)) if places else outputs

    @contextmanager
    def as_before(self, places: Collection[Place], noted: Noted) -> Iterator[None]:
        """Surround what is to find in these places what they held before.

        Args:
            places: in which there are batches now.
            noted: as for ``write_back``.
        """
        values = self._values(places)
        _put(self._layers, {(number, name): self._before[number].get(name, _MISSING) for number, name in places})
        try:
            yield
        finally:
            _put(self._layers, values)
            for (number, name), value in values.items():
                noted(self._layers[number], name, self._before[number].get(name), value, _is_at_work)

    def _values(self, places: Collection[Place]) -> dict[Place, Any]:
        return {(number, name): vars(self._layers[number])[name] for number, name in places}


def _is_at_work() -> bool:
    return True


def _are_alike(before: Any, value: Any) -> bool:
    """Tell whether a batch is in place of a batch, or a tuple of some in place of one: what can be read of them is."""
    if not isinstance(value, (BatchTensor, tuple)) or type(before) is not type(value):
        return False
    held = [(path, type(leaf)) for path, leaf in leaves(value)]
    return held == [(path, type(leaf)) for path, leaf in leaves(before)] and {BatchTensor} == {kind for _, kind in held}


def _holds_no_others(value: Any, batches: Collection[int]) -> bool:
    held = [id(leaf) for _, leaf in leaves(value) if isinstance(leaf, BatchTensor)]
    return bool(held) and all(batch in batches for batch in held)
