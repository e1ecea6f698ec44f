"""torch's profiler over a few steps of this rank, with the layers' names and with what this rank waits for."""

from __future__ import annotations

import contextlib
import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from ..ledger import script_line
from ..pace import Pace

LAYER, ANCHOR, STEP = "layer ", "ddp_patch anchor", "ddp_patch step"  # what annotations of ours begin with


class Tracer:
    """Runs it, and takes back what it has put in place."""

    def __init__(self, path: Path) -> None:
        """Prepare.

        Args:
            path: of this rank's trace.
        """
        self._path = path
        self._profile: Any = None
        self._undo = contextlib.ExitStack()
        self._names: dict[int, str] = {}  # of modules, by identity
        self._roots: Counter[str] = Counter()  # outermost modules of one class
        self._spans: list[tuple[str, float, float, str]] = []
        self._anchor = 0.0
        self._step: Any = None

    def begin(self, pace: Pace) -> None:
        """Trace from now on.

        Args:
            pace: the clock of this rank.
        """
        is_cuda = torch.cuda.is_available()
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
        self._profile = profile(activities=activities, record_shapes=True)
        with _silent():  # Kineto tells of itself on standard error (torch 2.13)
            self._profile.start()
        self._undo.callback(setattr, nn.Module, "_call_impl", nn.Module._call_impl)
        nn.Module._call_impl = self._named(nn.Module._call_impl)  # type: ignore[method-assign]
        self._undo.callback(delattr, pace, "end")
        pace.end = self._noted(pace.end)  # type: ignore[method-assign]
        self._anchor = perf_counter()
        with record_function(ANCHOR):
            pass
        self.stepped()

    def stepped(self) -> None:
        """Another step begins."""
        if self._step is not None:
            self._step.__exit__(None, None, None)
        self._step = record_function(STEP)
        self._step.__enter__()

    def end(self) -> dict[str, Any]:
        """Write the trace; gives where the clocks of ``perf_counter`` and the trace meet, and what was waited for."""
        self._undo.close()
        if self._profile is None:
            return {}
        self._step.__exit__(None, None, None)
        with _silent():
            self._profile.stop()
            self._profile.export_chrome_trace(str(self._path))
        self._profile = self._step = None
        self._names.clear()
        return {"anchor": self._anchor, "spans": self._spans}

    def _noted(self, wrapped: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(wrapped)
        def end(kind: str, began: float | None) -> None:
            if began is not None:
                self._spans.append((kind, began, perf_counter(), script_line()))
            wrapped(kind, began)

        return end

    def _named(self, wrapped: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(wrapped)
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return wrapped(module, *args, **kwargs)
            with record_function(LAYER + self._name(module)):
                return wrapped(module, *args, **kwargs)

        return call

    def _name(self, module: nn.Module) -> str:
        """Name a module as its outermost one does: the first that is called."""
        if id(module) not in self._names:
            root = type(module).__name__
            self._roots[root] += 1
            if self._roots[root] > 1:  # a generator and a discriminator may both be Sequential
                root += f" {self._roots[root]}"
            for name, each in module.named_modules():
                its = f"{root}.{name} ({type(each).__name__})" if name else root
                self._names.setdefault(id(each), its)
        return self._names[id(module)]


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Surround what C++ writes to standard error."""
    saved = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)
