"""Things that a forward may branch on and that change without an attribute of a module being set.

What the forward's code can reach is walked once: configuration objects, containers, global variables, closures, default
arguments, attributes of classes and modules, the functions that it calls. Of objects only those attributes count whose
names stand in the code. Afterwards a call compares what stands in each place with what stood there, by identity. The
script's own code is followed as far as it goes, that of installed packages one step.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from ..batch.tensor import BatchTensor
from ..calling.scripts_code import is_torchs
from ..structure import Opaque
from .containers import PLAIN
from .state_snapshot import StateSnapshot
from .walk import OF_TORCH, Walk

CHANGES_OUTSIDE = (
    "its forward changes what it may branch on, outside of its attributes",
    "Keep that in attributes of the module",
)
MORE_THAN_WATCHED = (
    "its code and attributes reach more objects than are watched for changes",
    "Hold them in tensors, or in one long list",
)
_PASSES = 16  # in which names are gathered at most: a function that is found may name further attributes


class Guards:
    """Watches what some layers may branch on; ``content`` is what that is, for comparison."""

    def __init__(self, layers: list[nn.Module], number: Callable[[Any], Hashable]) -> None:
        """Find it.

        Args:
            layers: of a module.
            number: tells things apart, for as long as they live.
        """
        self._number = number
        self._layers = layers
        self._names: set[str] = set()  # of attributes and global variables that the code mentions
        self._has_more_names = False  # which were not looked for
        self._held: _Held | None = None  # by the layers, if no attribute was set since
        self.content: Any = None
        self.outside = StateSnapshot()  # what the code reaches beside what the layers hold
        self._find()

    def changed(self, layers_did: bool = False) -> bool:
        """Tell whether some of it changed since it was last asked; ``content`` is new then.

        Args:
            layers_did: attributes of layers were set.
        """
        if not layers_did and self.outside.is_as_found() and self._last_walk.standing.is_as_found():
            return False
        before = self.content
        if layers_did:
            self._held = None
        self._find()
        return bool(before != self.content)

    @property
    def generators(self) -> list[Any]:
        """Those of the script's own that were found."""
        return self.outside.generators + self._last_walk.standing.generators

    @property
    def codes(self) -> dict[types.CodeType, str]:
        """Those of the script's functions that were found, with their qualified names."""
        return self._last_walk.reached.codes

    @property
    def code(self) -> Any:
        """What ``names_read`` depends on."""
        return self._last_walk.reached.key

    def names_read(self) -> frozenset[str]:
        """Names of plain attributes of the script's own layers that a forward may read; ``ANY`` for all."""
        return self._last_walk.reached.names_read()

    @property
    def is_truncated(self) -> bool:
        """Whether there is more than is watched."""
        return self._last_walk.is_truncated or self._has_more_names

    @property
    def is_endless(self) -> bool:
        """Whether the code reaches an iterator, of which a trial would take what the script is to get."""
        return self.outside.is_endless or self._last_walk.standing.is_endless

    def of_argument(self, value: Any) -> Any:
        """What an argument of a call holds, now."""
        walk = self._walk()
        return walk.over(value, 0), *walk.deeper()

    def noted(self, arguments: Iterable[tuple[str, Any]]) -> StateSnapshot:
        """Note what stands outside of the layers, and in what a call is given beside batches."""
        walk = self._walk()
        for _, leaf in arguments:
            if not isinstance(leaf, (BatchTensor, Opaque)):
                walk.over(leaf, 0)
        for _ in walk.deeper():
            pass
        return self.outside.along_with(walk.standing).noted()

    def _walk(self) -> Walk:
        return Walk(self._layers, self._number, self._names)

    def _find(self) -> None:
        """Walk until the code that was found names nothing new."""
        for _ in range(_PASSES):
            before = len(self._names)
            self._find_once()
            self._has_more_names = len(self._names) != before
            if not self._has_more_names:
                break

    def _find_once(self) -> None:
        walk = self._walk()
        held = self._held
        if held is None or not held.is_of(self._layers):
            held = self._held = _Held(self._layers)
        # Code first: what it names is looked at whatever else the layers hold.
        content: list[Any] = []
        for layer in held.with_kinds:
            content += walk.kinds(layer, 0)
        content += [walk.over(function, 0) for function in held.functions()]  # of which no copy is made
        content += walk.deeper()
        self.outside, walk.standing = walk.standing, StateSnapshot()
        content += held.fixed
        content += [(name, walk.over(space.get(name), 0)) for space, name in held.attributes]
        for buffer in held.buffers():
            walk.standing.flag(buffer)
        content += walk.deeper()
        self._last_walk = walk  # which keeps what it met alive
        self.content = tuple(filter(None, content))


class _Held:
    """What layers hold that is to be walked, found once: torch's own layers mostly hold nothing of the kind."""

    def __init__(self, layers: list[nn.Module]) -> None:
        """Look at each attribute."""
        self._kinds, self._sizes = list(map(type, layers)), list(map(len, map(vars, layers)))
        self.with_kinds = [layer for layer in layers if not all(map(_is_torchs, type(layer).__mro__))]
        self.fixed: list[Any] = []  # the content of attributes that cannot change
        self.attributes: list[tuple[dict[str, Any], str]] = []  # where the others stand: one tensor follows another
        self._containers: list[Any] = []  # of functions, maybe
        self._functions: list[types.FunctionType] = []
        self._tables = [layer._buffers for layer in layers]
        for layer in layers:
            for name, value in vars(layer).items():
                if name not in OF_TORCH and type(value) not in PLAIN:
                    self._note(vars(layer), name, value)

    def is_of(self, layers: list[nn.Module]) -> bool:
        """Tell whether the layers have the classes that they had, and as many attributes."""
        return list(map(type, layers)) == self._kinds and list(map(len, map(vars, layers))) == self._sizes

    def functions(self) -> Iterator[types.FunctionType]:
        """Those that attributes are and hold, now."""
        yield from self._functions
        for container in filter(None, self._containers):
            for one in container.values() if type(container) is dict else container:
                if isinstance(one, types.FunctionType):
                    yield one

    def buffers(self) -> Iterator[Tensor]:
        """Those that there are, now."""
        for buffers in filter(None, self._tables):
            yield from (buffer for buffer in buffers.values() if buffer is not None)

    def _note(self, namespace: dict[str, Any], name: str, value: Any) -> None:
        kind = type(value)
        if isinstance(value, types.FunctionType):
            self._functions.append(value)
        elif kind in (dict, list, tuple):
            self._containers.append(value)
        if kind is tuple and all(type(item) in PLAIN for item in value):
            self.fixed.append((name, (kind, tuple((type(item), item) for item in value))))
        else:
            self.attributes.append((namespace, name))


def _is_torchs(kind: type) -> bool:
    return kind is object or is_torchs(kind)
