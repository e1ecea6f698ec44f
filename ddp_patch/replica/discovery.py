"""nn.Module.__call__: watched only until every optimized parameter has its replica."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

from ..calling.calls import Call
from ..patch import Args, Kwargs, Patch, Wrapper
from ..patcher import Patcher


class TakesModels(Protocol):
    """Who takes over modules that the script trains."""

    watching: bool  # every module call is looked at
    watch: Callable[[], None]  # begins to do so
    rest: Callable[[], None]  # ends it

    def found(self, call: Call) -> bool:
        """Tell whether a call should be taken over."""

    def call(self, call: Call) -> Any:
        """Carry it out."""


class Discovery:
    """Finds the modules of a script that need not be wrapped in nn.DataParallel, then stops watching."""

    def __init__(self, models: TakesModels, patcher: Patcher) -> None:
        """Start idle: there is nothing to find before an optimizer exists."""
        self.at_call: Callable[[], None] | None = None  # told of every call, while there is somebody
        self._models = models
        self._patcher = patcher
        self._planted: tuple[Patch, ...] = ()  # while module calls are watched
        self._turn: object = None
        models.watch, models.rest = self.start, self._stop

    def start(self) -> None:
        """Watch module calls."""
        if not self._models.watching:
            self._turn = object()
            wrapper = self._of_turn(self._turn)
            self._planted = tuple(dataclasses.replace(row, wrapper=wrapper) for row in PATCHES)
            self._patcher.apply(self._planted)
            self._models.watching = True

    def take_over(self, call: Call) -> Any:
        """Have a call carried out by whoever should."""
        if self.at_call is not None:
            self.at_call()
        return self._models.call(call) if self._models.found(call) else call.as_written()

    def _of_turn(self, turn: object) -> Wrapper:
        def wrapper(session: Any, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
            # What the script put on top of it meanwhile keeps it there for good, below the one of the next turn.
            if turn is not self._turn:
                return wrapped(*args, **kwargs)
            return _call(session, wrapped, instance, args, kwargs)

        return wrapper

    def _stop(self) -> None:
        self._patcher.remove(self._planted)
        self._models.watching, self._turn = False, None


def _call(session: Any, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    return session.discovery.take_over(Call(instance, wrapped, args, kwargs))


_EFFECT = "finds the model; put back once it is found"
PATCHES = (Patch("torch.nn.modules.module", "Module.__call__", _call, _EFFECT, gives_way=True),)
