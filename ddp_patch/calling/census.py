"""What a module holds: its layers and parameters, walked once, and again when something in it was replaced.

Between walks a call looks only whether every slot holds what it held: a few dozen nanoseconds each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

_wants_grad: Callable[[Any], bool] = torch.Tensor.requires_grad.__get__  # type: ignore[attr-defined]
_CONTAINERS = ("_modules", "_parameters", "_buffers")


class Held:
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
        self.is_substituted = False  # ``torch.func.functional_call`` runs it with tensors that are not its parameters
        self._slots: list[tuple[Callable[[str], Any], str, Any]] = []
        self._containers: list[dict[str, Any]] = []
        self._flags: list[bool] = []
        self._trainable: frozenset[int] = frozenset()
        seen: set[int] = set()
        for layer in self.layers:
            if isinstance(layer, torch.jit.ScriptModule):  # what it holds is fixed, and C++ holds it
                own = list(layer.parameters(recurse=False))
            else:
                own = [parameter for parameter in layer._parameters.values() if parameter is not None]
                for container in (layer._modules, layer._parameters):
                    self._containers.append(container)
                    self._slots += [(container.get, name, value) for name, value in container.items()]
            for parameter in own:
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    self.parameters.append(parameter)
                    self.is_substituted = self.is_substituted or not isinstance(parameter, nn.Parameter)

        self._empty = self.parameters
        self._sizes = list(map(len, self._containers))

    def is_current(self) -> bool:
        """Tell whether the module still holds this."""
        for get, name, held in self._slots:
            if get(name) is not held:
                return False
        return list(map(len, self._containers)) == self._sizes

    def is_empty(self) -> bool:
        """Tell whether some parameters hold no numbers yet: those of lazy layers get them in a call."""
        self._empty = [parameter for parameter in self._empty if is_lazy(parameter) or parameter.is_meta]
        return bool(self._empty)

    def trainable(self) -> frozenset[int]:
        """Identities of the parameters that want gradients."""
        flags = list(map(_wants_grad, self.parameters))
        if flags != self._flags:
            self._flags = flags
            self._trainable = frozenset(id(p) for p, wanted in zip(self.parameters, flags, strict=True) if wanted)
        return self._trainable


class Census:
    """Gives what modules hold; asked at every call."""

    def __init__(self) -> None:
        """Start with nothing walked."""
        # By identity: a module may have a hash of its own, which changes with what it holds (torchmetrics).
        self._held: dict[int, Held] = {}
        self._replaced = 0

    def noted(self, name: Any) -> None:
        """An attribute of some module was set or deleted."""
        if name in _CONTAINERS:
            self._replaced += 1

    def of(self, module: nn.Module) -> Held:
        """Tell what a module holds now."""
        held = self._held.get(id(module))
        if held is None or held.replaced != self._replaced or not held.is_current():
            held = self._held[id(module)] = Held(module, self._replaced)
        return held

    def forget(self, layers: Iterable[nn.Module]) -> None:
        """Let go of modules."""
        for layer in layers:
            self._held.pop(id(layer), None)

    def close(self) -> None:
        """Let go of the modules."""
        self._held.clear()
