"""What a forward may branch on, as far as Python can see it: a call that differs in it is observed anew.

Attributes that are set are noticed where they are set. What can change unseen is in ``guards``.
"""

from __future__ import annotations

import itertools
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..calling.calls import Call
from ..calling.census import ModuleContents, kinds_of_slots
from ..calling.scripts_code import is_own
from ..calling.swap import original_class
from ..generators import kinds
from .call_forms import CallForm, ModuleState
from .code import ANY, difference, without_numbers
from .containers import PLAIN
from .guards import Guards
from .walk import OF_TORCH

_BASES = (nn.Module, nn.Sequential, nn.ModuleList, nn.ModuleDict, object)  # which read no attribute of a script's
_COUNTED = (int, float)
_MOST_STATES = 256  # of modules that are remembered
_MOST_LAYER_STATES = 16_384


class _Seen:
    """The state of one module when it was last looked at."""

    def __init__(self, contents: ModuleContents) -> None:
        self.contents = contents
        self.states: list[int] = []  # of its layers
        self.changed: set[int] = set()  # positions of layers whose attributes were set since
        self.state = -1
        self.content = -1
        self.guards: Guards | None = None
        self.code: Any = None  # that the guards found
        self.read: frozenset[str] = frozenset()  # names of attributes that these may read
        self.is_stale = False  # things that guards look into were replaced
        # A layer and the name of a plain attribute, or None and a name that its code mentions.
        self.changed_last: tuple[nn.Module | None, str] | None = None


class Fingerprints:
    """Tells apart the states of modules and the forms of calls."""

    def __init__(self) -> None:
        """Start with nothing seen."""
        self._next = itertools.count()
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._modules: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()
        self._module_numbers: dict[int, int] = {}
        self._states: dict[Any, int] = {}
        self._contents: dict[int, Any] = {}  # of the states
        self._layer_states: dict[Any, int] = {}
        # Of tensors among the attributes of a layer, where the script set one of another shape.
        self._shapes: weakref.WeakKeyDictionary[nn.Module, dict[str, torch.Size]] = weakref.WeakKeyDictionary()
        self._layer_contents: dict[int, Any] = {}
        self._seen: dict[int, _Seen] = {}  # by the identity of the module
        self._places: dict[int, list[tuple[_Seen, int]]] = {}  # where a layer stands in modules that were looked at

    def noted(self, layer: nn.Module, name: str, before: Any, value: Any, is_at_work: Callable[[], bool]) -> None:
        """An attribute of a layer was set or deleted.

        Args:
            layer: whose.
            name: of the attribute.
            before: what it held, or None.
            value: what it holds now, or None.
            is_at_work: tells whether a model's call sets it.
        """
        places = self._places.get(id(layer))
        if not places:  # a copy that is tried
            return
        if isinstance(before, Tensor) and isinstance(value, Tensor):
            if before.shape != value.shape and not is_at_work():
                # A forward that keeps a mask as long as its batch has it for every length; a script means something.
                self._shapes.setdefault(layer, {})[name] = value.shape
            elif _form_of(before) == _form_of(value):
                return
        for seen, position in places:
            seen.changed.add(position)
            if type(before) in PLAIN and type(value) in PLAIN:
                seen.changed_last = (layer, name) if before != value else seen.changed_last
            else:
                seen.is_stale = True

    def reclassed(self, layer: nn.Module) -> None:
        """A layer got another class."""
        for seen, _ in self._places.get(id(layer), ()):
            seen.is_stale = True

    def of(self, module: nn.Module, contents: ModuleContents) -> ModuleState:
        """Fingerprint a module: its layers, their modes and what they hold. Asked at every call."""
        seen = self._seen.get(id(module))
        if seen is None or seen.contents is not contents:
            seen = self._begun(module, contents, seen)
        if seen.guards is None:
            seen.guards = Guards(contents.layers, self._number)
            seen.content = self._state_of(seen.guards.content)
            self._read_by(seen, seen.guards)
        elif seen.guards.changed(seen.is_stale):
            before, seen.content = self._contents.get(seen.content), self._state_of(seen.guards.content)
            seen.changed_last = None, difference(before, seen.guards.content)
            self._read_by(seen, seen.guards)
        seen.is_stale = False
        if seen.changed:
            for position in seen.changed:
                seen.states[position] = self._state(contents.layers[position], seen.read)
            seen.changed.clear()
            seen.state = self._state_of(tuple(seen.states))
        return ModuleState(seen.state, seen.content)

    def guards(self, module: nn.Module) -> Guards:
        """Give what watches a module whose state was asked for."""
        guards = self._seen[id(module)].guards
        assert guards is not None
        return guards

    def generators(self, call: Call) -> list[Any]:
        """Give those of the script's own that a call of a module may draw from, whose state was asked for."""
        guards = self.guards(call.module)
        return guards.generators + [leaf for _, leaf in call.leaves if isinstance(leaf, kinds())]

    def _state_of(self, content: Any) -> int:
        return _number_of(content, self._states, self._contents, _MOST_STATES, self._next)

    def without_numbers(self, form: CallForm) -> Any:
        """Give a form of calls without the numbers among its attributes and arguments: what may be annealed."""
        (layers, reached), *others = form
        states = self._contents.get(layers, (layers,))
        layer_contents = [self._layer_contents.get(state, state) for state in states]
        return without_numbers((*layer_contents, self._contents.get(reached, reached), *others))

    def changed_last(self, module: nn.Module) -> str:
        """Name the attribute that was changed last in a module."""
        seen = self._seen.get(id(module))
        layer, name = (seen and seen.changed_last) or (None, "")
        if layer is not None:
            return f"{original_class(layer).__name__}.{name}"
        return f"what its code reads ({name})" if name else "what its code reads"

    def _read_by(self, seen: _Seen, guards: Guards) -> None:
        """Tell which attributes its code may read now; where these are others, so are the states of its layers."""
        if guards.code != seen.code:
            seen.code, read = guards.code, guards.names_read()
            if read != seen.read:
                seen.read = read
                seen.changed.update(range(len(seen.states)))

    def _begun(self, module: nn.Module, contents: ModuleContents, before: _Seen | None) -> _Seen:
        if before is not None:
            self._leave(before)
        seen = self._seen[id(module)] = _Seen(contents)
        seen.states = [-1] * len(contents.layers)
        for position, layer in enumerate(contents.layers):
            self._places.setdefault(id(layer), []).append((seen, position))
            seen.changed.add(position)
        return seen

    def _leave(self, seen: _Seen) -> None:
        for layer in seen.contents.layers:
            places = [place for place in self._places.pop(id(layer), []) if place[0] is not seen]
            if places:
                self._places[id(layer)] = places

    def forget(self, layers: Iterable[nn.Module]) -> None:
        """Let go of modules."""
        for layer in layers:
            seen = self._seen.pop(id(layer), None)
            if seen is not None:
                self._leave(seen)

    def close(self) -> None:
        """Let go of classes and functions of the script."""
        self._seen.clear()
        self._places.clear()
        self._states.clear()
        self._contents.clear()
        self._layer_states.clear()
        self._layer_contents.clear()

    def _state(self, layer: nn.Module, read: frozenset[str]) -> int:
        attributes = [(name, value) for name, value in vars(layer).items() if name not in OF_TORCH]
        if ANY not in read and all(map(_is_scripts_own, original_class(layer).__mro__)):
            # What the script counts for itself, as the pictures that a model has seen. Flags change seldom.
            attributes = [(name, value) for name, value in attributes if name in read or type(value) not in _COUNTED]
        # The layer itself: another one in its place is another module. What is not plain is walked by the guards.
        plain = ((name, type(value), value if type(value) in PLAIN else None) for name, value in attributes)
        shapes = self._shapes.get(layer, {}).items()
        state = (self._number(layer), *plain, *kinds_of_slots(layer), *shapes)
        return _number_of(state, self._layer_states, self._layer_contents, _MOST_LAYER_STATES, self._next)

    def _number(self, thing: Any) -> Any:
        # Not id(): memory that was freed is used again, and not alike on all ranks.
        if isinstance(thing, types.MethodType):  # made anew each time it is asked for
            return self._number(thing.__func__), self._number(thing.__self__)
        if isinstance(thing, nn.Module):  # whatever its hash is
            if self._modules.get(id(thing)) is not thing:
                self._modules[id(thing)] = thing
                self._module_numbers[id(thing)] = next(self._next)
            return self._module_numbers[id(thing)]
        try:
            if thing not in self._numbers:
                self._numbers[thing] = next(self._next)
            return self._numbers[thing]
        except Exception:  # noqa: BLE001 — it cannot be hashed, compared or referred to weakly
            return type(thing).__qualname__


def _is_scripts_own(kind: type) -> bool:
    return kind in _BASES or is_own(kind)


def _form_of(tensor: Tensor) -> Any:
    return type(tensor), tensor.requires_grad, tensor.dtype, tensor.dim()


def _number_of(state: Any, numbers: dict[Any, int], contents: dict[int, Any], most: int, counter: Iterator[int]) -> int:
    """A number for a state, the same one when it comes back. Not its hash: that of -1 is that of -2."""
    number = numbers.get(state)
    if number is None:
        if len(numbers) == most:  # an attribute changes in every step
            numbers.clear()
            contents.clear()
        number = numbers[state] = next(counter)
        contents[number] = state
    return number
