"""What a module holds: its layers and parameters, walked once, and again when something in it was replaced.

Between walks a call looks only whether every slot holds what it held, without a step of Python's for each.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

_wants_grad: Callable[[Any], bool] = torch.Tensor.requires_grad.__get__  # type: ignore[attr-defined]
_values = operator.methodcaller("values")
_all_of = itertools.chain.from_iterable
_CONTAINERS = ("_modules", "_parameters", "_buffers")


class ModuleContents:
    """The layers and parameters of one module, which stays alive with it."""

    def __init__(self, module: nn.Module, replaced: int) -> None:
        """Walk the module.

        Args:
            module: to look at.
            replaced: containers of any layer that were replaced so far.
        """
        self.replaced = replaced
        self.layers = list(module.modules())
        self.parameters: list[nn.Parameter] = []
        self.usual: Any = None  # the last call, if the next one may be like it
        self.is_looked_at = False  # calls of the module come to us by themselves
        self.is_substituted = False  # ``torch.func.functional_call`` runs it with tensors that are not its parameters
        self._filled: list[dict[str, Any]] = []  # the containers that hold something
        self._empties: list[dict[str, Any]] = []
        self.flags: list[bool] = []  # of the parameters, which of them want gradients, and
        self.trainable: frozenset[int] = frozenset()  # the identities of these, when this was last asked for
        seen: set[int] = set()
        for layer in self.layers:
            if isinstance(layer, torch.jit.ScriptModule):  # what it holds is fixed, and C++ holds it
                parameters = list(layer.parameters(recurse=False))
            else:
                parameters = [parameter for parameter in layer._parameters.values() if parameter is not None]
                for container in (layer._modules, layer._parameters):
                    (self._filled if container else self._empties).append(container)
            for parameter in parameters:
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    self.parameters.append(parameter)
                    self.is_substituted = self.is_substituted or not isinstance(parameter, nn.Parameter)

        self._empty = self.parameters
        self._names, self._values = [*_all_of(self._filled)], [*_all_of(map(_values, self._filled))]

    def is_current(self) -> bool:
        """Tell whether the module still holds this."""
        return (
            not any(self._empties)
            and [*_all_of(self._filled)] == self._names
            and all(map(operator.is_, _all_of(map(_values, self._filled)), self._values))
        )

    def is_empty(self) -> bool:
        """Tell whether some parameters hold no numbers yet: those of lazy layers get them in a call."""
        if not self._empty:
            return False
        self._empty = [parameter for parameter in self._empty if is_lazy(parameter) or parameter.is_meta]
        return bool(self._empty)


class Census:
    """Gives what modules hold; asked at every call."""

    def __init__(self) -> None:
        """Start with nothing walked."""
        # By identity: a module may have a hash of its own, which changes with what it holds (torchmetrics).
        self._contents: dict[int, ModuleContents] = {}
        self._replaced = 0

    def noted(self, name: Any) -> None:
        """An attribute of some module was set or deleted."""
        if name in _CONTAINERS:
            self._replaced += 1

    def of(self, module: nn.Module) -> ModuleContents:
        """Tell what a module holds now."""
        contents = self._contents.get(id(module))
        if contents is None or contents.replaced != self._replaced or not contents.is_current():
            contents = self._contents[id(module)] = ModuleContents(module, self._replaced)
        flags = list(map(_wants_grad, contents.parameters))
        if flags != contents.flags:
            contents.flags = flags
            contents.trainable = frozenset(map(id, itertools.compress(contents.parameters, flags)))
        return contents

    def forget(self, layers: Iterable[nn.Module]) -> None:
        """Let go of modules."""
        for layer in layers:
            self._contents.pop(id(layer), None)

    def close(self) -> None:
        """Let go of the modules."""
        self._contents.clear()


def kinds_of_slots(layer: nn.Module) -> Iterator[tuple[Any, ...]]:
    """Give the names of what a layer itself holds, and what a forward may branch on of that without looking at values.

    Not the shapes of buffers: a forward may keep a mask as long as its batch has it.
    """
    for name, buffer in layer._buffers.items():
        yield name, buffer if buffer is None else buffer.dtype
    for name, parameter in layer._parameters.items():
        form = () if parameter is None or is_lazy(parameter) else (parameter.dtype, parameter.shape)
        yield name, type(parameter), form
    yield tuple(name for name, _ in layer._modules.items())  # that of a ScriptModule is no dictionary
