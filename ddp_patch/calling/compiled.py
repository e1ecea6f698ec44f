"""torch.compile around a model: what it compiles runs on rows, and a loss in it is that of all rows.

TorchDynamo would put a loss function into its graph, where ranks cannot meet. While a forward that computes a loss runs
on rows, these functions break the graph, so that they are called between two of its parts. Code that runs on batches is
not compiled: it computes the same, but for what it calls on rows.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
import torch.nn.functional as F
import wrapt
from torch import nn
from torch.optim import Optimizer

from ..batch.rules.losses import LOSSES

Stance = Literal["force_eager", "default"]


class _Used:
    is_seen = False


def is_used() -> bool:
    """Tell whether this program compiles anything; torch imports TorchDynamo with the first optimizer (2.13)."""
    return _Used.is_seen


def _watch(eval_frame: Any) -> None:
    """Note from now on what is to be compiled, and whether anything was before."""

    def compiles(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        _Used.is_seen = True
        wrapped(*args, **kwargs)

    wrapt.wrap_function_wrapper(eval_frame, "OptimizeContext.__init__", compiles)
    backends = eval_frame.cached_backends.values()  # None: disabled; empty after a reset
    _Used.is_seen = _WAS_THERE and (not backends or any(map(callable, backends)))


_WAS_THERE = "torch._dynamo.eval_frame" in sys.modules
wrapt.register_post_import_hook(_watch, "torch._dynamo.eval_frame")


def is_traced() -> bool:
    """Tell whether a compiler records what is computed, instead of computing it."""
    proxies = sys.modules.get("torch.fx.experimental.proxy_tensor")
    return proxies is not None and proxies.get_proxy_mode() is not None


def stance(kind: Stance) -> AbstractContextManager[Any]:
    """Surround what is not to be compiled, or what is, inside that."""
    return torch.compiler.set_stance(kind) if is_used() else nullcontext()


LOSS_FUNCTIONS = tuple(function.__name__ for function in LOSSES)
BATCH_NORM = ("batch_norm",)


def meets_in_norms(layers: list[nn.Module]) -> bool:
    """Tell whether ranks meet in the BatchNorm of these layers, if code is compiled."""
    return is_used() and any(layer.training or _has_no_statistics(layer) for layer in layers)


def _has_no_statistics(layer: nn.Module) -> bool:
    return isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.running_mean is None


@contextmanager
def breaking_graphs(names: Sequence[str]) -> Iterator[None]:
    """Surround a forward on rows in which ranks meet: they would in what stands for tensors while it is traced.

    Args:
        names: of functions of ``torch.nn.functional`` in which they do.
    """
    if not is_used():
        yield
        return
    ids: Any = sys.modules["torch._dynamo.trace_rules"]._disallowed_callable_ids  # torch 2.13
    added = [key for key in (id(getattr(F, name)) for name in names) if key not in ids]
    for key in added:
        ids.add(key)
    try:
        yield
    finally:
        for key in added:
            ids.remove(key)


def _calls(kind: type[nn.Module]) -> Any:
    # By itself TorchDynamo passes the frame of torch's own modules over, such as nn.Sequential (torch 2.13).
    called = sys.modules["torch._dynamo.external_utils"].wrap_inline(kind._call_impl)
    # What is compiled is kept by code, and given up by code: not that of all functions that are wrapped so.
    called.__code__ = called.__code__.replace(co_firstlineno=called.__code__.co_firstlineno)
    return called


class Compiling:
    """How a script compiles a function, for the forwards of models and the steps of optimizers that it calls."""

    def __init__(self, how: dict[str, Any]) -> None:
        """Compile nothing yet.

        Args:
            how: arguments of ``torch.compile``, but for ``fullgraph``: a replica is not part of the function's graph.
        """
        self.how = {name: value for name, value in how.items() if name in _FOR_MODELS}
        # None holds its module, which is its first argument.
        self._forwards: weakref.WeakKeyDictionary[nn.Module, Any] = weakref.WeakKeyDictionary()
        self._steps: weakref.WeakKeyDictionary[Optimizer, tuple[Any, Any]] = weakref.WeakKeyDictionary()

    @contextmanager
    def forward_of(self, module: nn.Module) -> Iterator[None]:
        """Surround a call of a module that computes rows, which runs compiled inside."""
        attributes = vars(module)
        if attributes.get("_compiled_call_impl") is not None or isinstance(module, torch.jit.ScriptModule):
            yield
            return
        if module not in self._forwards:
            self._forwards[module] = torch.compile(_calls(type(module)), **self.how)
        # As Module.compile() has it (torch 2.13).
        attributes["_compiled_call_impl"] = functools.partial(self._forwards[module], module)
        try:
            with stance("default"):
                yield
        finally:
            del attributes["_compiled_call_impl"]

    @contextmanager
    def steps_of(self, optimizers: Sequence[Optimizer]) -> Iterator[None]:
        """Surround a function that runs as written: the steps of optimizers run compiled inside."""
        steps = [_Step(optimizer, self._compiled_step_of) for optimizer in optimizers]
        try:
            for step in steps:
                step.put()
            yield
        finally:
            for step in steps:
                step.take_away()

    def _compiled_step_of(self, optimizer: Optimizer, written: Any) -> Any:
        function, compiled = self._steps.get(optimizer, (None, None))
        if function is not written:
            compiled = torch.compile(written, **self.how)
            self._steps[optimizer] = written, compiled
        return compiled


class _Step:
    """The compiled step of an optimizer, in place of its own for a while."""

    def __init__(self, optimizer: Optimizer, compiled_step_of: Callable[[Optimizer, Any], Any]) -> None:
        self._optimizer, self._own = optimizer, vars(optimizer).get("step")
        self._compiled_step_of: Callable[[Optimizer, Any], Any] | None = compiled_step_of
        # As it is written, or as it was put on it: a scheduler counts the calls.
        written = type(optimizer).step if self._own is None else self._own

        @functools.wraps(written)
        def step(*args: Any, **kwargs: Any) -> Any:
            if self._compiled_step_of is None:  # a scheduler that was made meanwhile calls it for good
                return written(*args, **kwargs)
            with stance("default"):
                return self._compiled_step_of(self._optimizer, written)(*args, **kwargs)

        # A scheduler asks for __func__.
        self._step: Any = types.MethodType(step, optimizer) if self._own is None else step

    def put(self) -> None:
        vars(self._optimizer)["step"] = self._step

    def take_away(self) -> None:
        attributes = vars(self._optimizer)
        if attributes.get("step") is self._step:
            del attributes["step"]
            if self._own is not None:
                attributes["step"] = self._own
        self._compiled_step_of = self._step = None  # no cycle: it holds the optimizer, and that its model


_FOR_MODELS = ("backend", "mode", "options", "dynamic", "recompile_limit", "isolate_recompiles")


def needs_full_graph(error: BaseException) -> bool:
    """Tell whether TorchDynamo refused a forward, because ``fullgraph=True`` does not let it break a graph."""
    exc = sys.modules.get("torch._dynamo.exc")
    return exc is not None and isinstance(error, exc.Unsupported)


def count_buffer_writes(layers: list[nn.Module]) -> int | None:
    """Count how often the buffers of layers were written, if code is compiled."""
    if not is_used():
        return None
    return sum(buffer._version for layer in layers for buffer in layer._buffers.values() if buffer is not None)
