"""nn.Module.__call__: watched only until every optimized parameter has its replica."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ..calling.calls import Call
from ..patch import Args, Kwargs, Patch
from ..patcher import Patcher


class Models(Protocol):
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

    def __init__(self, models: Models, patcher: Patcher) -> None:
        """Start idle: there is nothing to find before an optimizer exists."""
        self._models = models
        self._patcher = patcher
        models.watch, models.rest = self.start, self._stop

    def start(self) -> None:
        """Watch module calls."""
        if not self._models.watching:
            self._patcher.apply(PATCHES)
            self._models.watching = True

    def taken(self, call: Call) -> Any:
        """Have a call carried out by whoever should."""
        return self._models.call(call) if self._models.found(call) else call.as_written()

    def _stop(self) -> None:
        self._patcher.remove(PATCHES)
        self._models.watching = False


def _call(session: Any, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    return session.discovery.taken(Call(instance, wrapped, args, kwargs))


PATCHES = (Patch("torch.nn.modules.module", "Module.__call__", _call, "finds the model; put back once it is found"),)
