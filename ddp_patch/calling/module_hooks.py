"""Hooks that the script put on modules see the whole batch, as they do on one process.

A module with hooks runs on rows between its hooks; one with hooked modules inside runs as written, on batches. Hooks
that torch itself registers (spectral and weight norm, pruning) compute weights and stay where the rows are.
"""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import nn
from torch.nn.modules.module import _has_any_global_hook  # torch 2.13; a hook on every module of the program

from . import compiled
from .calls import Call
from .capturing import captures, is_capturing
from .census import ModuleContents

_KINDS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class HookCensus:
    """Puts calls between hooks, and remembers which modules have hooked modules inside."""

    def __init__(self) -> None:
        """Start without any hook seen."""
        self.registered = 0  # hooks registered so far in this session
        # Modules without hooks inside, with what they held and the registrations when that was seen.
        self._clear: dict[int, tuple[ModuleContents, int]] = {}
        self._capturing: dict[int, tuple[ModuleContents, int]] = {}  # those with hooks of transformers' alone, likewise
        self._opened: dict[int, tuple[ModuleContents, int]] = {}  # the others
        self._between: dict[int, _Parts] = {}  # of modules that are called now
        self._calls_itself: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()  # by identity

    def noted(self, name: Any) -> None:
        """An attribute of some module was set: hooks that were put aside may be back."""
        if name in _KINDS:
            self.registered += 1

    def any_on(self, module: nn.Module) -> bool:
        """Tell whether a call of a module may come by hooks at all; asked in every step."""
        own = vars(module)
        has_some = (
            _has_any_global_hook()
            or own["_forward_pre_hooks"]
            or own["_forward_hooks"]
            or own["_backward_pre_hooks"]
            or own["_backward_hooks"]
            or self._between
        )
        return bool(has_some) and (self.need_whole(module) or self.are_on(module))

    def are_on(self, module: nn.Module) -> bool:
        """Tell whether a module carries hooks of the script's, in place or aside."""
        return has_own(module) or id(module) in self._between

    def around(self, call: Call, inner: Callable[[Call], Any], stance: compiled.Stance) -> Any:
        """Carry out a call so that the script's hooks see what goes in and out of ``inner``, which stands for forward.

        Args:
            call: of a module that carries hooks.
            inner: computes what its forward would; the script's hooks are aside while it does.
            stance: of ``torch.compile`` for that. Hooks see batches, so that they are never compiled.
        """
        with self.again(call.module):
            outer, parts = self._between.get(id(call.module)), _Parts(call.module)
            before = parts.forward  # torch asks for it before a hook may change it

            def forward(*args: Any, **kwargs: Any) -> Any:
                with parts.placed(True, before), compiled.stance(stance):
                    return inner(call.with_arguments(args, kwargs))

            self._between[id(call.module)] = parts
            try:
                with parts.placed(False, forward), compiled.stance("force_eager"):
                    return call.as_written()
            finally:
                if outer is None:
                    del self._between[id(call.module)]
                else:
                    self._between[id(call.module)] = outer

    def again(self, module: nn.Module) -> AbstractContextManager[None]:
        """Surround a call of a module with all its hooks, if its own forward makes the call."""
        if id(module) in self._between:
            self._calls_itself[id(module)] = module
        return self.whole(module)

    def whole(self, module: nn.Module) -> AbstractContextManager[None]:
        """Surround what is to find all hooks of a module, though it may be called now."""
        parts = self._between.get(id(module))
        return nullcontext() if parts is None else parts.placed(None, None)

    def inside(self, module: nn.Module, contents: ModuleContents) -> bool:
        """Tell whether a module within this one, or one that calls itself, carries a hook of the script's."""
        if id(module) in self._between and id(module) in self._calls_itself:
            return True
        seen = self._clear.get(id(module))
        if seen is not None and seen[0] is contents and seen[1] == self.registered:
            return False
        if self._capturing.get(id(module)) == (contents, self.registered):
            return is_capturing()
        hooked = [layer for layer in contents.layers if layer is not module and has_own(layer)]
        if not all(map(only_captures, hooked)):
            return True  # asked again next time: handles are removed without a word
        (self._capturing if hooked else self._clear)[id(module)] = contents, self.registered
        return bool(hooked) and is_capturing()

    def look_at_gradients(self, module: nn.Module, contents: ModuleContents) -> bool:
        """Tell whether hooks within a module, which ``inside`` has just found, do more than take down what it gives."""
        return self._capturing.get(id(module)) != (contents, self.registered)

    @staticmethod
    def need_whole(module: nn.Module) -> bool:
        """Tell whether hooks can only be right if a module computes the whole: global and legacy backward ones."""
        return bool(_has_any_global_hook()) or (module._is_full_backward_hook is False and bool(module._backward_hooks))

    def is_new(self, module: nn.Module, contents: ModuleContents) -> bool:
        """Tell whether hooks inside a module were registered since this was last asked."""
        before = self._opened.get(id(module))
        self._opened[id(module)] = contents, self.registered
        return before != (contents, self.registered)

    def forget(self, layers: Iterable[nn.Module]) -> None:
        """Let go of modules."""
        for layer in layers:
            for each in (self._clear, self._capturing, self._opened):
                each.pop(id(layer), None)

    def close(self) -> None:
        """Let go of the modules."""
        for each in (self._clear, self._capturing, self._opened):
            each.clear()


def has_own(module: nn.Module) -> bool:
    """Tell whether a module carries hooks of the script's own."""
    attributes = vars(module)
    hooked = [attributes[kind] for kind in _KINDS if attributes[kind]]
    return bool(hooked) and any(not is_torchs(hook) for hooks in hooked for hook in hooks.values())


def only_captures(module: nn.Module) -> bool:
    """Tell whether the hooks that a module carries take down what it gives, and nothing else."""
    hooks = [hook for kind in _KINDS for hook in vars(module)[kind].values()]
    return all(is_torchs(hook) or captures(hook) for hook in hooks)


def drop_own(module: nn.Module) -> None:
    """Take the script's hooks off a copy of a module."""
    for kind in _KINDS:
        hooks = vars(module)[kind]
        vars(module)[kind] = OrderedDict(
            (key, hook) for key, hook in hooks.items() if is_torchs(hook) or captures(hook)
        )


class _Parts:
    """A module's hooks, some of them aside, and its forward. What the script changes meanwhile stays changed."""

    def __init__(self, module: nn.Module) -> None:
        self._module = vars(module)
        self.forward = self._module.get("forward")  # on the instance, as torch.compile and Accelerate put it
        self._now: tuple[bool | None, Any] = None, self.forward  # what is placed
        # A handle takes its hook out of the dict that it was put in, so these keep all.
        self._hooks = {kind: self._module[kind] for kind in _KINDS}

    @contextmanager
    def placed(self, torchs: bool | None, forward: Any) -> Iterator[None]:
        """Surround what only a part of the hooks is for.

        Args:
            torchs: those of torch, or the script's; None for all, with the module's forward.
            forward: what stands for the module's on the instance.
        """
        before = self._now
        self._place(torchs, forward)
        try:
            yield
        finally:
            self._place(*before)

    def _place(self, torchs: bool | None, forward: Any) -> None:
        if self._module.get("forward") is not self._now[1]:
            self.forward = self._module.get("forward")
        standing = self.forward if torchs is None else forward
        self._now = torchs, standing
        self._module.update(self._hooks if torchs is None else {k: _only(v, torchs) for k, v in self._hooks.items()})
        if standing is None:
            self._module.pop("forward", None)
        else:
            self._module["forward"] = standing


def _only(hooks: Any, torchs: bool) -> Any:
    return OrderedDict((key, hook) for key, hook in hooks.items() if is_torchs(hook) is torchs)


def is_torchs(hook: Any) -> bool:
    """Tell hooks that torch itself registers, which compute weights."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    module = getattr(hook, "__module__", None) or type(hook).__module__
    return str(module).startswith("torch.")
