"""torch.nn: attributes of modules that a forward may branch on, and parameters that are made of batches."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..batch.forms import full_tensor
from ..batch.tensor import BatchTensor
from ..patch import Args, Kwargs, Patch
from ..session import Session


def _set_attribute(session: Session, wrapped: Any, instance: nn.Module, args: Args, kwargs: Kwargs) -> None:
    before = _stored(instance, args[0])
    wrapped(*args, **kwargs)
    session.replicas.census.noted(args[0])
    session.replicas.hooks.noted(args[0])
    if (seen := session.world.observation) is not None:
        seen.note_attribute(args[1])
    _noted(session, instance, args[0], before, args[1])


def _delete_attribute(session: Session, wrapped: Any, instance: nn.Module, args: Args, kwargs: Kwargs) -> None:
    before = _stored(instance, args[0])
    wrapped(*args, **kwargs)
    _noted(session, instance, args[0], before, None)


def _register_buffer(session: Session, wrapped: Any, instance: nn.Module, args: Args, kwargs: Kwargs) -> None:
    def bind(name: str, tensor: Any, *rest: Any, **options: Any) -> None:
        before = _stored(instance, name)
        wrapped(name, tensor, *rest, **options)
        _noted(session, instance, name, before, tensor)

    bind(*args, **kwargs)


def _parameter(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    """Make a parameter of all rows, as one process does: DDP's constructor would look for the memory of a batch."""

    def bind(kind: Any, data: Any = None, *rest: Any, **options: Any) -> Any:
        return wrapped(kind, full_tensor(data) if isinstance(data, BatchTensor) else data, *rest, **options)

    return bind(*args, **kwargs)


def _noted(session: Session, module: nn.Module, name: str, before: Any, value: Any) -> None:
    replicas = session.replicas
    if (id(module), name) not in replicas.forwards.taken:
        replicas.decisions.fingerprints.noted(module, name, before, value, replicas.is_at_work)


def _stored(module: nn.Module, name: str) -> Any:
    attributes = vars(module)
    if name in attributes:
        return attributes[name]
    buffers = attributes.get("_buffers")
    return buffers.get(name) if isinstance(buffers, dict) else None


_CHANGED = "a changed module is observed anew"

PATCHES = (
    Patch("torch.nn.modules.module", "Module.__delattr__", _delete_attribute, _CHANGED),
    Patch("torch.nn.modules.module", "Module.__setattr__", _set_attribute, _CHANGED),
    Patch("torch.nn.modules.module", "Module.register_buffer", _register_buffer, _CHANGED),
    Patch("torch.nn.parameter", "Parameter.__new__", _parameter, "a parameter of a batch has all rows"),
)
