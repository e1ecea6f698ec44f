"""Hooks that the script put on modules see the whole batch, as they do on one process.

A module with hooks runs on rows between its hooks; one with hooked modules inside runs as written, on batches. Hooks
that torch itself registers (spectral and weight norm, pruning) compute weights and stay where the rows are.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.module import _has_any_global_hook  # torch 2.13; a hook on every module of the program

from .calls import Call
from .census import Held

_KINDS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class HookCensus:
    """Remembers which modules have hooked modules inside, and asks anew when a hook was registered."""

    def __init__(self) -> None:
        """Start without any hook seen."""
        self.registered = 0  # hooks registered so far in this session
        # Modules without hooks inside, with what they held and the registrations when that was seen.
        self._clear: dict[int, tuple[Held, int]] = {}
        self._opened: dict[int, tuple[Held, int]] = {}  # the others

    def inside(self, module: nn.Module, held: Held) -> bool:
        """Tell whether a module below this one carries a hook of the script's."""
        seen = self._clear.get(id(module))
        if seen is not None and seen[0] is held and seen[1] == self.registered:
            return False
        if any(has_own(layer) for layer in held.layers if layer is not module):
            return True  # asked again next time: handles are removed without a word
        if not _has_legacy(held):
            self._clear[id(module)] = held, self.registered
        return False

    def needs_whole(self, module: nn.Module, held: Held) -> bool:
        """Tell whether hooks can only be right if the module computes the whole: global and legacy backward ones."""
        if _has_any_global_hook():
            return True
        seen = self._clear.get(id(module))
        return (seen is None or seen[0] is not held or seen[1] != self.registered) and _has_legacy(held)

    def is_new(self, module: nn.Module, held: Held) -> bool:
        """Tell whether hooks inside a module were registered since this was last asked."""
        before = self._opened.get(id(module))
        self._opened[id(module)] = held, self.registered
        return before != (held, self.registered)

    def forget(self, layers: Iterable[nn.Module]) -> None:
        """Let go of modules."""
        for layer in layers:
            self._clear.pop(id(layer), None)
            self._opened.pop(id(layer), None)

    def close(self) -> None:
        """Let go of the modules."""
        self._clear.clear()
        self._opened.clear()


def _has_legacy(held: Held) -> bool:
    return any(layer._is_full_backward_hook is False and layer._backward_hooks for layer in held.layers)


def has_own(module: nn.Module) -> bool:
    """Tell whether a module carries hooks of the script's own."""
    held = vars(module)
    return any(held[kind] and any(not is_torchs(hook) for hook in held[kind].values()) for kind in _KINDS)


def drop_own(module: nn.Module) -> None:
    """Take the script's hooks off a copy of a module."""
    vars(module).update({kind: _only(vars(module)[kind], torchs=True) for kind in _KINDS})


def around(call: Call, inner: Callable[[Call], Any]) -> Any:
    """Carry out a call so that the script's hooks see what goes in and out of ``inner``, which stands for its forward.

    Args:
        call: of a module that carries hooks.
        inner: computes what its forward would; the script's hooks are aside while it does.
    """
    module = call.module
    held = {kind: vars(module)[kind] for kind in _KINDS}
    own = {kind: _only(hooks, torchs=False) for kind, hooks in held.items()}
    torchs = {kind: _only(hooks, torchs=True) for kind, hooks in held.items()}
    before = vars(module).get("forward")  # on the instance, as torch.compile and Accelerate put it

    def forward(*args: Any, **kwargs: Any) -> Any:
        with _with(module, torchs, before):
            return inner(call.of(args, kwargs))

    with _with(module, own, forward):
        return call.as_written()


@contextmanager
def _with(module: nn.Module, hooks: dict[str, Any], forward: Any) -> Iterator[None]:
    attributes = vars(module)
    held = {kind: attributes[kind] for kind in _KINDS}
    before = attributes.get("forward")
    attributes.update(hooks)
    _set_forward(attributes, forward)
    try:
        yield
    finally:
        attributes.update(held)
        _set_forward(attributes, before)


def _set_forward(attributes: dict[str, Any], forward: Any) -> None:
    if forward is None:
        attributes.pop("forward", None)
    else:
        attributes["forward"] = forward


def _only(hooks: Any, torchs: bool) -> Any:
    return OrderedDict((key, hook) for key, hook in hooks.items() if is_torchs(hook) is torchs)


def is_torchs(hook: Any) -> bool:
    """Tell hooks that torch itself registers, which compute weights."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    module = getattr(hook, "__module__", None) or type(hook).__module__
    return str(module).startswith("torch.")
