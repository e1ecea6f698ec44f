"""Registration of hooks: those on parameters see global gradients, those on modules see whole batches."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from ..batch.nodes import unhooked
from ..batch.rules import autograd as rules
from ..batch.tensor import BatchTensor
from ..calling.capturing import captures
from ..calling.module_hooks import is_torchs
from ..deciding.tried_forward import note_hook
from ..errors import BatchError
from ..gradients.averages import means_of
from ..patch import Args, Kwargs, Patch
from ..session import Session
from .autograd import is_trained
from .below_modes import below_modes

_averaged: Any = WeakTensorKeyDictionary()  # what was computed of parameters alone, whose gradient is made global
_kept: Any = WeakTensorKeyDictionary()  # what a forward computed -> what keeps its gradient for the script's form of it
_ON_MODULES = (
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
    "register_backward_hook",
)


def _on_tensor(session: Session, wrapped: Any, instance: Tensor, args: Args, kwargs: Kwargs) -> Any:
    if not instance.is_leaf:
        session.world.looks_at_gradients = True
    if isinstance(instance, BatchTensor):
        return rules.register_hook(wrapped, (instance, _seen_by(session, args, kwargs)), {})
    _make_global(session, instance)
    if (computed := unhooked(instance)) is not instance:  # what was computed from it does not come by its tied form
        handle = computed.register_hook(*args, **kwargs)
        if computed in _kept:  # gradients are kept as the last hook leaves them
            before, keep = _kept[computed]
            before.remove()
            _kept[computed] = computed.register_hook.__wrapped__(keep), keep
        return handle
    if not instance.is_leaf:
        note_hook()
    if instance.is_leaf and instance.requires_grad and not session.replicas.forwards.computes_rows:
        return session.replicas.backwards.hooks.add(instance, _hook(args, kwargs), False, wrapped)
    if session.replicas.forwards.computes_rows and not instance.is_leaf:
        raise BatchError(
            "A forward registers a hook on an activation, whose gradient is this rank's rows there, though its "
            "trial did not. Register the hook on every call, so that the module is run on whole batches."
        )
    return wrapped(_seen_by(session, args, kwargs))


def _make_global(session: Session, tensor: Tensor) -> None:
    """Have whoever looks see all of a gradient of which rows that were met before may give this rank its share."""
    computed = unhooked(tensor)
    is_of_rows = session.replicas.forwards.computes_rows or session.world.rules_at_work  # which these are, of a batch
    if tensor.is_leaf or is_of_rows or computed in _averaged:
        return
    if is_trained(session, tensor):
        _averaged[computed] = True
        computed.register_hook.__wrapped__(lambda grad: means_of([grad], session.world, recorded=True)[0])


def _after_accumulation(session: Session, wrapped: Any, instance: Tensor, args: Args, kwargs: Kwargs) -> Any:
    if isinstance(instance, BatchTensor) or not instance.is_leaf:
        return wrapped(*args, **kwargs)
    return session.replicas.backwards.hooks.add(instance, _hook(args, kwargs), True, wrapped)


def _retain_grad(session: Session, wrapped: Any, instance: Tensor, args: Args, kwargs: Kwargs) -> None:
    session.world.looks_at_gradients = True
    seen = session.world.observation
    if seen is not None and not isinstance(instance, BatchTensor) and not instance.is_leaf:
        # What rows give a sum over the batch is summed below it.
        seen.forbid_split("its forward keeps the gradient of what it computes of the batch (retain_grad)", at_line=True)
    if not isinstance(instance, BatchTensor):
        _make_global(session, instance)
    computed = unhooked(instance)
    if computed is not instance and not isinstance(instance, BatchTensor) and computed not in _kept:
        reference, before = weakref.ref(instance), list[Any]()

        def come(grad: Tensor) -> None:  # in a backward, before torch adds what comes by the tied form
            its = reference()
            before[:] = () if its is None else (its.grad,)

        def keep(grad: Tensor) -> None:
            its = reference()
            if its is not None and unhooked(its) is computed_now():  # else the script has written to it
                so_far = before[0] if before else its.grad
                its.grad = grad.clone() if so_far is None else so_far + grad
            before.clear()

        computed_now = weakref.ref(computed)
        instance.register_hook.__wrapped__(come)  # type: ignore[attr-defined]
        _kept[computed] = computed.register_hook.__wrapped__(keep), keep
    if session.job.precision.is_requested and not isinstance(instance, BatchTensor) and not instance.is_leaf:
        session.replicas.backwards.loss_scale.keeps(instance)
    wrapped(*args, **kwargs)


def _on_module(session: Session, wrapped: Any, instance: nn.Module, args: Args, kwargs: Kwargs) -> Any:
    session.replicas.hooks.registered += 1
    # One on the way forward may make a leaf of an activation, as PEFT's do.
    hook = _hook(args, kwargs)
    session.world.looks_at_gradients |= not (is_torchs(hook) or captures(hook))
    with session.replicas.hooks.whole(instance):
        handle = wrapped(*args, **kwargs)
    if session.replicas.hooks.need_whole(instance):
        session.replicas.watch()  # a layer of torch's is found as it is called
    return handle


def _seen_by(session: Session, args: Args, kwargs: Kwargs) -> Any:
    hook = _hook(args, kwargs)
    return session.replicas.backwards.loss_scale.seen_by(hook) if session.job.precision.is_requested else hook


def _hook(args: Args, kwargs: Kwargs) -> Any:
    return args[0] if args else kwargs["hook"]


_GRADIENTS = "hooks on parameters see the global gradient"

PATCHES = (
    Patch("torch", "Tensor.register_hook", below_modes(_on_tensor), _GRADIENTS),
    Patch("torch", "Tensor.register_post_accumulate_grad_hook", below_modes(_after_accumulation), _GRADIENTS),
    Patch("torch", "Tensor.retain_grad", _retain_grad, "gradients that are kept cannot be corrected later"),
    *(
        Patch("torch.nn.modules.module", f"Module.{name}", _on_module, "hooks see whole batches")
        for name in _ON_MODULES
    ),
)
