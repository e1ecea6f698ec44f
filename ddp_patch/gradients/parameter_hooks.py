"""Hooks that the script put on parameters see the global gradient, as they do on one process.

autograd calls them in the middle of a backward, with this rank's share of the gradient. So one hook of ours takes
their place: it keeps the share back, and once the backward is through, the shares are averaged and the script's hooks
are called with the mean, in the order in which they were due.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from ..batch.nodes import unheard
from ..batch.world import World
from ..errors import BatchError
from .averages import means_of
from .grad_watch import grad_of, set_grad
from .loss_scale import LossScale

# As they were before the session patched them.
_register_hook: Any = unheard(Tensor.register_hook)
_register_after: Any = unheard(Tensor.register_post_accumulate_grad_hook)


@dataclass
class Hooks:
    """The script's hooks on one parameter."""

    before: Any = field(default_factory=OrderedDict)  # register_hook
    after: Any = field(default_factory=OrderedDict)  # register_post_accumulate_grad_hook
    ours: set[bool] = field(default_factory=set)  # which of the two autograd calls us for

    def on(self, grad: Tensor) -> Tensor:
        """Apply the hooks that may change a gradient."""
        for hook in list(self.before.values()):
            changed = hook(grad)
            if changed is not None:
                _refuse_others(hook, grad, changed)
                grad = changed
        return grad

    def on_accumulated(self, parameter: Tensor) -> None:
        """Call those that see an accumulated gradient."""
        for hook in list(self.after.values()):
            if hook(parameter) is not None:
                raise RuntimeError("Tensor post accumulate grad hooks should return None.")


def _refuse_others(hook: Any, grad: Tensor, changed: Any) -> None:
    """Raise what torch does (2.13, python_hook.cpp) where a hook gives what is no gradient of its tensor."""
    if not isinstance(changed, Tensor):
        raise TypeError(f"expected Variable, but hook returned '{type(changed).__name__}'")
    name = getattr(hook, "__name__", "<unknown>")
    if changed.type() != grad.type():
        raise RuntimeError(f"hook '{name}' has changed the type of value (was {grad.type()} got {changed.type()})")
    if changed.shape != grad.shape:
        raise RuntimeError(f"hook '{name}' has changed the size of value")


class ParameterHooks:
    """Stands between autograd and the hooks on the parameters of replicas."""

    def __init__(
        self, is_due: Callable[[], bool], is_trained: Callable[[Any], bool], world: World, scale: LossScale
    ) -> None:
        """Start without hooks.

        Args:
            is_due: tells whether a backward is running after which hooks are called.
            is_trained: tells whether a tensor is a parameter of a replica.
            world: the ranks to average over.
            scale: of the running backward.
        """
        self._scale = scale
        self._is_due = is_due
        self._is_trained = is_trained
        self._world = world
        self._hooks: Any = WeakIdKeyDictionary()
        self._shares: Any = WeakIdKeyDictionary()  # parameter -> this rank's share, in the order of arrival
        self._accumulated: Any = WeakIdKeyDictionary()
        self.any = False  # a parameter carries or carried hooks; asked at every step, so it is kept cheap
        self.is_in_autograd_grad = False  # its results meet the hooks once they are global

    def on_any(self, parameters: list[Any]) -> bool:
        """Tell whether one of these parameters carries hooks of the script's."""
        return self.any and any(self._kind(parameter, "before", "after") for parameter in parameters)

    def after_any(self, parameters: list[Any]) -> bool:
        """Tell whether one of these parameters carries hooks that want to see its accumulated gradient."""
        return self.any and any(self._kind(parameter, "after") for parameter in parameters)

    def _kind(self, parameter: Tensor, *kinds: str) -> bool:
        hooks = self._hooks.get(parameter)
        return hooks is not None and any(getattr(hooks, kind) for kind in kinds)

    def add(self, parameter: Tensor, hook: Callable[[Tensor], Any], after: bool, register: Any) -> RemovableHandle:
        """Keep a hook that the script registers.

        Args:
            parameter: a leaf.
            hook: the script's.
            after: it is to see ``.grad`` after the accumulation.
            register: torch's own method, bound to the parameter.
        """
        hooks = self._hooks.setdefault(parameter, Hooks())
        self.any = True
        kind = hooks.after if after else hooks.before
        if after not in hooks.ours:
            hooks.ours.add(after)
            register(self._on_accumulated if after else self._on_share(parameter))
        handle = RemovableHandle(kind)
        kind[handle.id] = hook
        return handle

    def adopt(self, parameter: Any) -> None:
        """Take over hooks that were there before the session; the script's handles go on removing them."""
        self.any = self.any or bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)
        hooks = self._hooks.get(parameter)
        if (hooks is None or False not in hooks.ours) and parameter._backward_hooks:
            hooks = self._hooks.setdefault(parameter, Hooks())
            hooks.before, parameter._backward_hooks = parameter._backward_hooks, None
            hooks.ours.add(False)
            _register_hook(parameter, self._on_share(parameter))
        if (hooks is None or True not in hooks.ours) and parameter._post_accumulate_grad_hooks:
            hooks = self._hooks.setdefault(parameter, Hooks())
            hooks.after, parameter._post_accumulate_grad_hooks = parameter._post_accumulate_grad_hooks, None
            hooks.ours.add(True)
            _register_after(parameter, self._on_accumulated)

    def on(self, parameter: Tensor, grad: Tensor) -> Tensor:
        """Apply the hooks of a parameter to a gradient that is global."""
        hooks = self._hooks.get(parameter)
        return grad if hooks is None else hooks.on(grad)

    # --- during a backward ------------------------------------------------------------------------------------------

    def _on_share(self, parameter: Tensor) -> Callable[[Tensor | None], Tensor | None]:
        reference = weakref.ref(parameter)

        def on_share(grad: Tensor | None) -> Tensor | None:
            parameter = reference()
            if grad is None or parameter is None:
                return None  # that of TouchParameters: one process would not have called the hook
            if not self._hooks[parameter].before:
                return None  # the last one was removed
            if not self._is_trained(parameter):
                return self._scale.seen_by(self._hooks[parameter].on)(grad)  # type: ignore[no-any-return]
            if self.is_in_autograd_grad:
                return None
            if not self._is_due():
                return self._hooks[parameter].on(grad)  # type: ignore[no-any-return]
            if grad.is_sparse:
                raise BatchError(
                    f"A hook on a parameter of shape {tuple(parameter.shape)} would see this rank's sparse gradient "
                    "only. Write nn.Embedding(..., sparse=False), or change p.grad after backward."
                )
            earlier, share = self._shares.get(parameter), self._scale.true(grad)
            self._shares[parameter] = share if earlier is None else earlier + share
            return torch.zeros_like(grad)

        return on_share

    def _on_accumulated(self, parameter: Tensor) -> None:
        if self._is_due() and self._is_trained(parameter):
            self._accumulated[parameter] = True
        else:
            with self._scale.true_on(parameter):
                self._hooks[parameter].on_accumulated(parameter)

    # --- after it ---------------------------------------------------------------------------------------------------

    def release(self, parameters: list[Any], recorded: bool) -> None:
        """Average the shares of a replica's parameters and let the script's hooks see the means."""
        if not self.any:
            return
        hooked = [p for p in parameters if self._kind(p, "before")]
        due = self._in_order(hooked, self._shares)
        popped = [self._shares.pop(parameter, None) for parameter in due]
        shares = [torch.zeros_like(p) if share is None else share for p, share in zip(due, popped, strict=True)]
        for parameter, mean in zip(due, means_of(shares, self._world, recorded), strict=True):
            with torch.set_grad_enabled(recorded):
                changed = self._scale.seen_by(self._hooks[parameter].on)(mean)
                before = grad_of(parameter)
                if before is None or recorded or before.is_sparse:
                    set_grad(parameter, changed if before is None else before + changed)
                else:
                    before.add_(changed)  # the script may hold it

    def release_after(self, parameters: list[Any]) -> None:
        """Call the hooks that wait for accumulated gradients, now that these are global."""
        hooked = [p for p in parameters if self._kind(p, "after")]
        for parameter in self._in_order(hooked, self._accumulated):
            self._accumulated.pop(parameter, None)
            self._hooks[parameter].on_accumulated(parameter)

    def forget(self) -> None:
        """Drop what a failed backward left."""
        if self.any:
            self._shares.clear()
            self._accumulated.clear()

    def _in_order(self, hooked: list[Any], arrived: Any) -> list[Any]:
        """Those that any rank had a gradient for, in the order of the first rank that had."""
        if not hooked:
            return []
        positions = {id(p): index for index, p in enumerate(hooked)}
        local = [positions[id(p)] for p in arrived if id(p) in positions]
        order = dict.fromkeys(index for entry in self._world.share([local]) for index in entry[0])
        return [hooked[index] for index in order]
