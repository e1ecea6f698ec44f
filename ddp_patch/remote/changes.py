"""What a function changed of what it got: noted where it ran, and made where it was called.

What one thing holds of another, a module's layers or an optimizer's parameters, travels as which one it is, where both
went with the call; what the function has made travels by value.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..generators import kinds, set_state_of, state_of
from . import steps
from .attributes import Prints, attributes_of
from .picklers import number_above, numbered

_TENSORS = ("_parameters", "_buffers")


class OfTensor(NamedTuple):
    """What a tensor is now."""

    value: Tensor
    requires_grad: bool


class OfModule(NamedTuple):
    """What a module holds now, other than before."""

    training: bool
    tensors: dict[tuple[str, str], Tensor | None]  # where, and by which name
    layers: dict[str, nn.Module | None]
    attributes: dict[str, Any]
    gone: list[str]
    kind: type | None  # that it has become, as lazy layers do


class OfClass(NamedTuple):
    """What a class holds now, other than before."""

    attributes: dict[str, Any]
    gone: list[str]


class OfOptimizer(NamedTuple):
    """What an optimizer goes on with."""

    groups: list[list[Tensor]]
    state: dict[str, Any]
    has_stepped: bool  # as far as a scheduler asks


def note(tracked: Sequence[Any]) -> list[Any]:
    """Note how things are before a call."""
    prints = Prints(numbered(tracked))
    return [_seen(each, prints) for each in tracked]


def changes(tracked: Sequence[Any], before: Sequence[Any]) -> dict[int, Any]:
    """Give what is another one since, by position."""
    found: dict[int, Any] = {}
    prints = Prints(numbered(tracked))
    for index, (each, was) in enumerate(zip(tracked, before, strict=True)):
        if isinstance(each, Tensor):
            if _seen(each, prints) != was:
                # On an accelerator, unpickling would make the caller use it.
                found[index] = OfTensor(each.detach().cpu(), each.requires_grad)
        elif isinstance(each, nn.Module):
            its = _of_module(each, prints, *was)
            if its.training != was[1] or its.tensors or its.layers or its.attributes or its.gone or its.kind:
                found[index] = its
        elif isinstance(each, type):
            changed = OfClass(*_of_attributes(each, prints, was))
            if any(changed):
                found[index] = changed
        elif isinstance(each, dict):  # hooks
            if _seen(each, prints) != was:
                found[index] = dict(each)
        elif isinstance(each, kinds()):
            found[index] = state_of(each)
        elif isinstance(each, torch.optim.Optimizer):
            groups = [group["params"] for group in each.param_groups]
            found[index] = OfOptimizer(groups, each.state_dict(), steps.has_stepped(each))
        elif not isinstance(each, FunctionType):
            found[index] = each.state_dict()
    return found


def make(tracked: Sequence[Any], changed: Mapping[int, Any]) -> None:
    """Change the caller's own likewise."""
    with torch.no_grad():
        for index, value in changed.items():
            each = tracked[index]
            if isinstance(each, Tensor):
                _write(each, value)
            elif isinstance(each, nn.Module):
                _make_module(each, value)
            elif isinstance(each, type):
                for name in value.gone:
                    delattr(each, name)
                for name, its in value.attributes.items():
                    setattr(each, name, its)
            elif isinstance(each, dict):
                each.clear()
                each.update(value)
                number_above(each)
            elif isinstance(each, kinds()):
                set_state_of(each, value)
            elif isinstance(each, torch.optim.Optimizer):
                for number, params in enumerate(value.groups):
                    if number < len(each.param_groups):
                        each.param_groups[number]["params"] = params
                    else:
                        each.add_param_group({"params": params})
                each.load_state_dict(value.state)
                if value.has_stepped:
                    steps.remember(each)
            else:
                each.load_state_dict(value)


def _of_module(
    module: nn.Module,
    prints: Prints,
    kind: type,
    training: bool,
    tensors: dict[tuple[str, str], Any],
    layers: dict[str, Any],
    attributes: dict[str, Any],
) -> OfModule:
    tensors_now = _tensors_of(module)
    changed, gone = _of_attributes(module, prints, attributes)
    return OfModule(
        module.training,
        {
            # ``self.center = 0.9 * self.center`` puts another one into its place, which may have a graph.
            place: value if value is None or value.is_leaf else value.detach()
            for place, value in tensors_now.items()
            if place not in tensors or tensors[place] is not value
        },
        {name: layer for name, layer in module._modules.items() if name not in layers or layers[name] is not layer},
        changed,
        [name for where, name in tensors if (where, name) not in tensors_now]
        + [name for name in layers if name not in module._modules]
        + gone,
        module.__class__ if module.__class__ is not kind else None,
    )


def _of_attributes(
    each: nn.Module | type, prints: Prints, before: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Give those that are others now, and the names of those that are gone."""
    now, its = prints.of(each), attributes_of(each)
    changed = {name: its[name] for name in now if name not in before or now[name] != before[name]}
    for name in [name for name in changed if now[name] is None]:
        warnings.warn(
            f"ddp_patch.launch: {getattr(each, '__name__', type(each).__name__)}.{name} is now of "
            f"{type(changed.pop(name)).__name__}, which cannot be handed to the process that called, so that it stays "
            "there as it was. Return what the process needs of it.",
            stacklevel=2,
        )
    return changed, [name for name in before if name not in now]


def _make_module(module: nn.Module, its: OfModule) -> None:
    module.training = its.training
    if its.kind is not None:
        module.__class__ = its.kind
    for name in its.gone:
        if hasattr(module, name):
            delattr(module, name)
    for (where, name), value in its.tensors.items():
        if name in getattr(module, where):
            getattr(module, where)[name] = value
        elif where == "_parameters":
            module.register_parameter(name, value)  # type: ignore[arg-type]
        else:
            module.register_buffer(name, value)
    for name, layer in its.layers.items():
        if name in module._modules:
            module._modules[name] = layer
        else:
            module.register_module(name, layer)
    vars(module).update(its.attributes)


def _tensors_of(module: nn.Module) -> dict[tuple[str, str], Tensor | None]:
    """Its own buffers and parameters."""
    return {(where, name): value for where in _TENSORS for name, value in getattr(module, where).items()}


def _write(target: Tensor, its: OfTensor) -> None:
    value = its.value
    if is_lazy(target):
        target.materialize(value.shape, dtype=value.dtype)
    if target.shape == value.shape and target.dtype == value.dtype:
        _copy(target, value)
    else:
        target.data = value.to(target.device)
    if target.is_leaf and target.requires_grad != its.requires_grad:
        target.requires_grad_(its.requires_grad)


def _copy(target: Tensor, value: Tensor) -> None:
    if target.layout is torch.strided and not target.is_nested:
        for dim, stride in enumerate(target.stride()):
            if stride == 0:  # an expanded one shows the same several times, and takes no copy
                target, value = (each.narrow(dim, 0, min(1, each.shape[dim])) for each in (target, value))
    target.copy_(value)


def _seen(each: Any, prints: Prints) -> Any:
    if isinstance(each, nn.Module):
        # Not its type: replicas have one that passes for the class.
        return each.__class__, each.training, _tensors_of(each), dict(each._modules), prints.of(each)
    if isinstance(each, type):
        return prints.of(each)
    if isinstance(each, dict):
        return prints.one(dict(each)) if each else {}
    if not isinstance(each, Tensor):
        return None
    if is_lazy(each):
        return "without a size"
    print_ = None
    if each.device.type == "cpu" and each.layout is torch.strided and not each.is_quantized and each.numel():
        # What changes ``.data`` leaves the version as it was.
        print_ = zlib.crc32(each.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return each._version, tuple(each.shape), each.dtype, each.requires_grad, print_
