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

from torch import nn

from ..batch.tensor import BatchTensor
from ..structure import Opaque
from .state_snapshot import StateSnapshot
from .walk import OF_TORCH, PLAIN, Walk

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
        self._find()
        return bool(before != self.content)

    @property
    def generators(self) -> list[Any]:
        """Those of the script's own that were found."""
        return self.outside.generators + self._last_walk.standing.generators

    @property
    def codes(self) -> dict[types.CodeType, str]:
        """Those of the script's functions that were found, with their qualified names."""
        return self._last_walk.codes

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
        # Code first: what it names is looked at whatever else the layers hold.
        content: list[Any] = []
        for layer in self._layers:
            content += walk.kinds(layer, 0)
            content += [walk.over(value, 0) for value in _functions_among(vars(layer))]  # of which no copy is made
        content += walk.deeper()
        self.outside, walk.standing = walk.standing, StateSnapshot()
        for layer in self._layers:
            for name, value in vars(layer).items():
                if name not in OF_TORCH and type(value) not in PLAIN:
                    content.append((name, walk.over(value, 0)))
            for buffer in layer._buffers.values():
                if buffer is not None:
                    walk.standing.flag(buffer)
        content += walk.deeper()
        self._last_walk = walk  # which keeps what it met alive
        self.content = tuple(filter(None, content))


def _functions_among(namespace: dict[str, Any]) -> Iterator[types.FunctionType]:
    for value in namespace.values():
        some = value.values() if type(value) is dict else value if type(value) in (list, tuple) else (value,)
        yield from (one for one in some if isinstance(one, types.FunctionType))
