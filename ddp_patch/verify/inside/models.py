"""The models that a script trains: found by their parameters, named as their author does."""

from __future__ import annotations

import gc
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ...batch.forms import full_tensor
from ...batch.tensor import BatchTensor

_WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "OptimizedModule")
_MODES = re.compile(r"Dropout|BatchNorm|InstanceNorm")


class TrainedModels:
    """Keeps what is trained until the script has ended, and names its parameters."""

    def __init__(self) -> None:
        """Start with none."""
        self.roots: dict[str, nn.Module] = {}
        self.loose: dict[str, Tensor] = {}  # trained, and of no module
        self._names: dict[int, str] = {}
        self._kept: list[Tensor] = []  # so that no identity is used again
        self._made: list[nn.Module] | None = []  # all modules, in order; None once an optimizer says what is trained

    def name(self, parameters: Iterable[Tensor]) -> list[str]:
        """Name parameters, looking for their modules if they are new."""
        wanted = list(parameters)
        new = [parameter for parameter in wanted if id(parameter) not in self._names]
        if new:
            self._kept.extend(new)
            self._find(new)
        return [self._names[id(parameter)] for parameter in wanted]

    def made(self, module: nn.Module) -> None:
        """Keep a module that the script makes, in case that no optimizer ever tells what is trained."""
        if self._made is not None and not _is_ours(type(module)):
            self._made.append(module)

    def optimized(self) -> None:
        """Let go of modules: an optimizer tells which ones are trained."""
        self._made = None

    @property
    def by_hand(self) -> bool:
        """Whether there has been no optimizer yet, so that the script updates weights itself, if anybody does."""
        return self._made is not None

    @property
    def named(self) -> Collection[int]:
        """The identities of what has a name."""
        return self._names.keys()

    def name_made(self) -> None:
        """Name the parameters of all modules that the script has made so far, and of no optimizer."""
        made = [module for module in self._made or () if _has_weights(module)]
        inside = {id(child) for module in made for child in module.modules() if child is not module}
        for module in made:
            parameters = list(module.named_parameters())
            if id(module) not in inside and any(id(parameter) not in self._names for _, parameter in parameters):
                self._keep(module, parameters)

    def weights(self) -> dict[str, Tensor]:
        """Give all parameters as they are now, by name; not what ranks have rows of, which measuring would gather."""
        found = {name: value for name, value in self.loose.items() if type(value) is not BatchTensor}
        for label, module in self.roots.items():
            named = {f"{label}.{plain_name(name)}": value for name, value in module.named_parameters()}
            found.update({name: value for name, value in named.items() if not is_lazy(value)})
        return found

    def _keep(self, module: nn.Module, parameters: list[tuple[str, nn.Parameter]]) -> None:
        label = self._label(type(module).__name__)
        self.roots[label] = module
        self._kept.extend(parameter for _, parameter in parameters)
        for name, parameter in parameters:
            self._names.setdefault(id(parameter), f"{label}.{plain_name(name)}")

    def _find(self, new: list[Tensor]) -> None:
        order = {id(parameter): place for place, parameter in enumerate(new)}
        found = []
        for module in outermost(set(order)):
            places = [order[id(p)] for p in module.parameters() if id(p) in order]
            if places:
                found.append((min(places), -len(places), module))
        for _, _, module in sorted(found, key=lambda entry: entry[:2]):
            parameters = list(module.named_parameters())
            if all(id(p) in self._names for _, p in parameters if id(p) in order):
                continue  # of another that holds the same
            self._keep(module, parameters)
        for parameter in new:
            if id(parameter) not in self._names:
                name = f"tensor {len(self.loose) + 1}"
                self.loose[name] = parameter
                self._names[id(parameter)] = name

    def _label(self, name: str) -> str:
        count = sum(label.partition(" ")[0] == name for label in self.roots)
        return name if not count else f"{name} ({count + 1})"

    def state(self) -> dict[str, Tensor]:
        """Copy all weights and buffers as they are now."""
        tensors: dict[str, Tensor] = {}
        for label, module in self.roots.items():
            for name, value in _values(module):
                tensors[f"{label}.{plain_name(name)}"] = _copied(value)
        tensors.update({name: _copied(value) for name, value in self.loose.items()})
        return tensors

    def leave_batches(self) -> None:
        """Let go of what ranks have rows of: the others may not be there to gather it."""
        self.loose = {name: value for name, value in self.loose.items() if type(value) is not BatchTensor}

    def buffers(self) -> dict[str, float]:
        """Measure the floating-point buffers."""
        return {
            f"{label}.{plain_name(name)}": float(buffer.detach().double().norm())
            for label, module in self.roots.items()
            for name, buffer in module.named_buffers()
            if type(buffer) is Tensor and buffer.is_floating_point()
        }

    def evaluating(self) -> int:
        """Count the layers in evaluation mode that do otherwise in training: dropout and BatchNorm."""
        return sum(
            not layer.training and _has_modes(layer) for module in self.roots.values() for layer in module.modules()
        )

    def let_go(self) -> None:
        """Keep nothing alive any longer."""
        self.roots.clear()
        self.loose.clear()
        self._kept.clear()
        self._made = None


def plain_name(name: str) -> str:
    """Leave out what wrappers put into a parameter's name."""
    return ".".join(part for part in name.split(".") if part not in ("module", "_orig_mod"))


def _has_modes(layer: nn.Module) -> bool:
    dropout = getattr(layer, "dropout", None)
    return _MODES.search(type(layer).__name__) is not None or (isinstance(dropout, float) and dropout > 0)


def _has_weights(module: nn.Module) -> bool:
    """Leave out wrappers, what TorchScript made, and modules whose making failed."""
    kind = type(module)
    is_made = "_modules" in vars(module) and not isinstance(module, torch.jit.ScriptModule)
    return is_made and kind.__name__ not in _WRAPPERS


def _values(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    kept = module.state_dict().keys()
    yield from ((name, buffer) for name, buffer in module.named_buffers() if name in kept)


def _copied(value: Tensor) -> Tensor:
    value = full_tensor(value) if isinstance(value, BatchTensor) else value
    return value.detach().to("cpu", copy=True)


def outermost(wanted: set[int]) -> list[nn.Module]:
    """Find the modules that hold one of these parameters, and are in no other but a wrapper."""
    eligible: dict[type, bool] = {}
    modules: list[Any] = []
    for candidate in gc.get_objects():
        kind = type(candidate)  # not isinstance: some objects compute when they are asked for their class
        if kind not in eligible:
            eligible[kind] = issubclass(kind, nn.Module) and kind.__name__ not in _WRAPPERS and not _is_ours(kind)
        if eligible[kind] and "_modules" in candidate.__dict__:
            modules.append(candidate)
    holding = [module for module in modules if any(id(p) in wanted for p in module.parameters())]
    inside = {id(child) for module in holding for child in module.modules() if child is not module}
    return [module for module in holding if id(module) not in inside and not isinstance(module, torch.jit.ScriptModule)]


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith("ddp_patch.job.")
