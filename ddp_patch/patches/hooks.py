"""Registration of hooks: those on parameters see global gradients, those on modules see whole batches."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..batch.rules import autograd as rules
from ..batch.tensor import BatchTensor
from ..batch.world import World
from ..errors import BatchError
from ..patcher import Patch
from ..replica.module_hooks import is_torchs
from ..replica.replicas import Replicas
from ..replica.trial import note_hook

_ON_MODULES = (
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
    "register_backward_hook",
)


def patches(replicas: Replicas, world: World) -> list[Patch]:
    """Rows for ``Tensor.register_hook``, ``Tensor.retain_grad`` and ``Module.register_*_hook``."""

    def on_tensor(wrapped: Any, instance: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not instance.is_leaf:
            world.may_assume = False
        if isinstance(instance, BatchTensor):
            return rules.register_hook(wrapped, (instance, *args), kwargs)
        if not instance.is_leaf:
            note_hook()
        if instance.is_leaf and instance.requires_grad and not replicas.forwards.computes_rows:
            return replicas.backwards.hooks.add(instance, _hook(args, kwargs), False, wrapped)
        if replicas.forwards.computes_rows and not instance.is_leaf:
            raise BatchError(
                "A forward registers a hook on an activation, whose gradient is this rank's rows there, though its "
                "trial did not. Register the hook on every call, so that the module is run on whole batches."
            )
        return wrapped(*args, **kwargs)

    def after_accumulation(wrapped: Any, instance: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if isinstance(instance, BatchTensor) or not instance.is_leaf:
            return wrapped(*args, **kwargs)
        return replicas.backwards.hooks.add(instance, _hook(args, kwargs), True, wrapped)

    def retain_grad(wrapped: Any, instance: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        world.may_assume = False
        wrapped(*args, **kwargs)

    def on_module(wrapped: Any, instance: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        replicas.hooks.registered += 1
        # One on the way forward may make a leaf of an activation, as PEFT's do.
        world.may_assume = world.may_assume and is_torchs(_hook(args, kwargs))
        return wrapped(*args, **kwargs)

    gradients = "hooks on parameters see the global gradient"
    return [
        Patch("torch", "Tensor.register_hook", on_tensor, gradients),
        Patch("torch", "Tensor.register_post_accumulate_grad_hook", after_accumulation, gradients),
        Patch("torch", "Tensor.retain_grad", retain_grad, "gradients that are kept cannot be corrected later"),
        *(
            Patch("torch.nn.modules.module", f"Module.{name}", on_module, "hooks see whole batches")
            for name in _ON_MODULES
        ),
    ]


def _hook(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs["hook"]
