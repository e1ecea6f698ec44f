"""torch.nn.Module: attributes that a forward may branch on."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..patcher import Patch
from ..replica.replicas import Replicas


def patches(replicas: Replicas) -> list[Patch]:
    """Rows for ``Module.__setattr__`` and ``Module.__delattr__``."""

    def set_attribute(wrapped: Any, instance: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        before = _held(instance, args[0])
        wrapped(*args, **kwargs)
        replicas.census.noted(args[0])
        replicas.verdicts.fingerprints.noted(instance, args[0], before, args[1])

    def delete_attribute(wrapped: Any, instance: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        before = _held(instance, args[0])
        wrapped(*args, **kwargs)
        replicas.verdicts.fingerprints.noted(instance, args[0], before, None)

    changed = "a changed module is observed anew"
    return [
        Patch("torch.nn.modules.module", "Module.__delattr__", delete_attribute, changed),
        Patch("torch.nn.modules.module", "Module.__setattr__", set_attribute, changed),
    ]


def _held(module: nn.Module, name: str) -> Any:
    own = vars(module)
    if name in own:
        return own[name]
    buffers = own.get("_buffers")
    return buffers.get(name) if isinstance(buffers, dict) else None
