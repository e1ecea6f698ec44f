"""Python's garbage collector, which runs finalizers of the script's at another point on every rank."""

from __future__ import annotations

import gc
from threading import get_ident
from typing import Any


class Collector:
    """Tells whether it is at work, until ``stop``."""

    def __init__(self) -> None:
        """Begin to listen."""
        self._thread = 0  # that collects, now
        gc.callbacks.append(self._on_collection)

    def is_at_work(self) -> bool:
        """Tell whether what this thread does now is some finalizer's, or what it calls."""
        return self._thread == get_ident()

    def stop(self) -> None:
        """Listen no more."""
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, info: Any) -> None:
        self._thread = get_ident() if phase == "start" else 0
