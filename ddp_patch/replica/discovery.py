"""nn.Module.__call__: watched only until every optimized parameter has its replica."""

from __future__ import annotations

from typing import Any

from ..calling.calls import Call
from ..patch import Args, Kwargs, Patch
from ..patcher import Patcher
from .replicas import Replicas


class Discovery:
    """Finds the modules of a script that need not be wrapped in nn.DataParallel, then stops watching."""

    def __init__(self, replicas: Replicas, patcher: Patcher) -> None:
        """Start idle: there is nothing to find before an optimizer exists."""
        self._replicas = replicas
        self._patcher = patcher
        replicas.watch, replicas.rest = self.start, self._stop

    def start(self) -> None:
        """Watch module calls."""
        if not self._replicas.watching:
            self._patcher.apply(PATCHES)
            self._replicas.watching = True

    def _stop(self) -> None:
        self._patcher.remove(PATCHES)
        self._replicas.watching = False


def _call(session: Any, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    call = Call(instance, wrapped, args, kwargs)
    replicas: Replicas = session.replicas
    return replicas.call(call) if replicas.found(call) else call.as_written()


PATCHES = (Patch("torch.nn.modules.module", "Module.__call__", _call, "finds the model; put back once it is found"),)
