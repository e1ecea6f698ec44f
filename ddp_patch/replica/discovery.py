"""nn.Module.__call__: watched only until every optimized parameter has its replica."""

from __future__ import annotations

from typing import Any

from ..patcher import Patch, Patcher
from .replicas import Replicas
from .verdicts import Call


class Discovery:
    """Finds the model of a script without nn.DataParallel, then stops watching."""

    def __init__(self, replicas: Replicas, patcher: Patcher) -> None:
        """Start idle: there is nothing to find before an optimizer exists."""
        self._replicas = replicas
        self._patcher = patcher
        self._watching = False
        self._rows = [
            Patch("torch.nn.modules.module", "Module.__call__", self._call, "finds the model; removed once it is found")
        ]

    def start(self) -> None:
        """Watch module calls."""
        if not self._watching:
            self._patcher.apply(self._rows)
            self._watching = True

    def _stop(self) -> None:
        self._patcher.remove(self._rows)
        self._watching = False

    def _call(self, wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = Call(instance, wrapped, args, kwargs)
        if not self._replicas.found(call):
            return call.as_written()
        result = self._replicas.call_found(call)
        if self._watching and self._replicas.everything_found():
            self._stop()
        return result
