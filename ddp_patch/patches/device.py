"""Devices that a script names: all are this rank's own, and on a host without CUDA its CPU or whatever it has.

Only names are redirected, where they are used: ``torch.device("cuda:0")`` stays what it is. No operation is intercepted
that was not given a device.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from ..batch.factories import as_subclass, of_batches
from ..batch.promised import PromisedTensor, arrive
from ..effects.places import Places
from ..patcher import Patch

_FACTORIES = (
    *("tensor", "as_tensor", "asarray", "scalar_tensor", "zeros", "ones", "empty", "full", "rand", "randn", "randint"),
    *("randperm", "arange", "range", "linspace", "logspace", "eye", "normal", "empty_strided", "empty_permuted"),
    *("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like"),
    *("tril_indices", "triu_indices", "sparse_coo_tensor", "sparse_csr_tensor", "bartlett_window", "blackman_window"),
    *("hamming_window", "hann_window", "kaiser_window", "sparse_csc_tensor", "sparse_bsr_tensor", "sparse_bsc_tensor"),
    *("sparse_compressed_tensor", "fft.fftfreq", "fft.rfftfreq"),
)
_NEW = ("new_tensor", "new_zeros", "new_ones", "new_empty", "new_full", "new_empty_strided", "new")
_TYPES = ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
# torch.cuda's functions whose first argument, or ``device``, is a device.
_OF_DEVICES = (
    *("set_device", "synchronize", "memory_stats", "memory_summary", "reset_peak_memory_stats", "current_stream"),
    *("default_stream", "get_rng_state", "utilization", "reset_accumulated_memory_stats", "stream"),
)
_MEASURED = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
# Without CUDA -> what these give.
_QUIET: dict[str, Any] = {
    **dict.fromkeys(("synchronize", "empty_cache", "ipc_collect", "set_device", "set_rng_state", "set_rng_state_all")),
    **dict.fromkeys(("init", "reset_accumulated_memory_stats", "set_per_process_memory_fraction")),
    **dict.fromkeys(("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached")),
    **dict.fromkeys(("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"), 0),
    **dict.fromkeys(("memory_cached", "max_memory_cached", "current_device", "utilization"), 0),
    "memory_summary": "",
    "memory_stats": {},
    "mem_get_info": (0, 0),
    "get_device_name": "cpu",
    "get_device_capability": (0, 0),
    "get_device_properties": SimpleNamespace(
        **{"name": "cpu", "major": 0, "minor": 0, "total_memory": 0, "is_integrated": True, "gcnArchName": ""},
        multi_processor_count=os.cpu_count(),
    ),
    "get_rng_state": torch.empty(0, dtype=torch.uint8),
    "get_rng_state_all": [],
}


def patches(places: Places, agreed: Callable[[Any], list[Any]] = lambda own: [own]) -> list[Patch]:
    """Rows for what takes a device.

    Args:
        places: where devices are.
        agreed: gives what each rank measured, so that all decide alike.
    """

    def with_device(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for value in (*args, *kwargs.values()):
            if isinstance(value, PromisedTensor):  # read below torch's overrides, as a number
                arrive(value)
        if "device" in kwargs:
            kwargs["device"] = places.of(kwargs["device"])  # wrapt made the dict for this call
        return wrapped(*args, **kwargs)

    def to(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return wrapped(places.of(args[0]), *args[1:], **kwargs)
        return with_device(wrapped, instance, args, kwargs)

    def cuda(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def bind(device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format) -> Any:
            return instance.to(device=places.device, non_blocking=non_blocking, memory_format=memory_format)

        return bind(*args, **kwargs)

    def packed(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return instance.to(device=places.device, **{name: kwargs[name] for name in kwargs if name != "device"})

    def context(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return wrapped(*map(places.of, args), **{name: places.of(value) for name, value in kwargs.items()})

    def generator(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return context(wrapped, instance, args, kwargs) if instance is torch.Generator else wrapped(*args, **kwargs)

    def as_type(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return wrapped(*map(_host_type, args), **{name: _host_type(value) for name, value in kwargs.items()})

    here = "this rank's device"
    rows = [
        Patch("torch", "Tensor.to", to, here),
        Patch("torch", "Tensor.cuda", cuda, here),
        Patch("torch.nn.utils.rnn", "PackedSequence.cuda", packed, here),
        *(Patch(*_place(name), of_batches(name, with_device), here) for name in _FACTORIES),
        Patch("torch", "Tensor.as_subclass", as_subclass, "sees the whole batch"),
        *(Patch("torch", f"Tensor.{name}", with_device, here) for name in _NEW),
        Patch("torch", "set_default_device", context, here),
        Patch("torch.utils._device", "DeviceContext.__init__", context, here),
        # The class stays in its place, for annotations and isinstance (its metaclass is a Python class in torch 2.13).
        Patch("torch._opaque_base", "OpaqueBaseMeta.__call__", generator, here),
        Patch("torch.jit", "load", with_location(places), here),
    ]
    if torch.cuda.is_available():
        return rows + _on_accelerators(places, context, agreed)
    types = [Patch("torch", name, as_type, "on the host") for name in ("Tensor.type", "set_default_tensor_type")]
    return [*rows, *types, *_without_cuda()]


def with_location(places: Places) -> Any:
    """Give ``torch.jit.load`` a device where it is asked for an accelerator."""

    def load(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def bind(f: Any, map_location: Any = None, *rest: Any, **options: Any) -> Any:
            return wrapped(f, places.of(map_location) if map_location else str(places.device), *rest, **options)

        return bind(*args, **kwargs)

    return load


def _place(name: str) -> tuple[str, str]:
    module, _, function = f"torch.{name}".rpartition(".")
    return module, function


def _host_type(given: Any) -> Any:
    """What stands for a type of CUDA tensors on a host without them."""
    if isinstance(given, str):
        return given.replace("torch.cuda.", "torch.")
    if getattr(given, "__module__", "") == "torch.cuda" and hasattr(torch, getattr(given, "__name__", "")):
        return getattr(torch, given.__name__)
    return given


def _on_accelerators(places: Places, context: Any, agreed: Callable[[Any], list[Any]]) -> list[Patch]:
    def stream(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def bind(kind: type, device: Any = None, *rest: Any, **options: Any) -> Any:
            return wrapped(kind, None if device is None else places.of(device), *rest, **options)

        return bind(*args, **kwargs)

    def state(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def bind(new_state: Any, device: Any = "cuda") -> Any:
            return wrapped(new_state, places.of(device))

        return bind(*args, **kwargs)

    def states(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        own = torch.cuda.get_rng_state(places.device)
        return [own.clone() for _ in range(torch.cuda.device_count())]

    def set_states(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        def bind(new_states: Any) -> None:
            for first in itertools.islice(new_states, 1):  # one process draws on its first device
                torch.cuda.set_rng_state(first, places.device)

        bind(*args, **kwargs)

    here, decide = "this rank's device", "the ranks' agreed, so that what a script decides by it is the same on all"
    measured = measuring(places, agreed)
    return [
        *(Patch("torch.cuda", name, context, here) for name in _OF_DEVICES),
        Patch("torch.cuda", "set_rng_state", state, here),
        Patch("torch.cuda", "get_rng_state_all", states, here, also=("torch.cuda.random:get_rng_state_all",)),
        Patch("torch.cuda", "set_rng_state_all", set_states, here, also=("torch.cuda.random:set_rng_state_all",)),
        *(
            Patch("torch.cuda", name, measured(choose), decide, also=(f"torch.cuda.memory:{name}",))
            for name, choose in {"mem_get_info": min, **dict.fromkeys(_MEASURED, max)}.items()
        ),
        Patch("torch.cuda", "device.__init__", context, here),
        Patch("torch.cuda.streams", "Stream.__new__", stream, here),
        *(Patch("torch.accelerator", name, context, here) for name in ("set_device_index", "synchronize")),
    ]


def measuring(places: Places, agreed: Callable[[Any], list[Any]]) -> Callable[[Callable[..., Any]], Any]:
    """Give a wrapper for what measures a device: each number becomes the least or the greatest of all ranks'.

    Args:
        places: where devices are.
        agreed: gives what each rank measured.
    """

    def of(choose: Callable[..., Any]) -> Any:
        def call(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            own = wrapped(*map(places.of, args), **{name: places.of(value) for name, value in kwargs.items()})
            is_torchs = str(sys._getframe(1).f_globals.get("__name__")).startswith("torch.")  # a compiler's, say
            every = [own] if is_torchs else agreed(own)
            return tuple(map(choose, zip(*every, strict=True))) if isinstance(own, tuple) else choose(every)

        return call

    return of


def _without_cuda() -> list[Patch]:
    def giving(value: Any) -> Any:
        def call(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return value

        return call

    def pinned(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return wrapped(*args, **kwargs) if torch.accelerator.is_available() else instance

    def event(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return _Event()

    def stream(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return _Stream()

    def host_tensor(name: str) -> Any:
        return lambda wrapped, instance, args, kwargs: getattr(torch, name)(*args, **kwargs)

    nothing = "does nothing without CUDA"
    return [
        *(Patch("torch.cuda", f"{name}Tensor", host_tensor(f"{name}Tensor"), "on the host") for name in _TYPES),
        *(Patch("torch.cuda.nvtx", name, giving(None), nothing) for name in ("range_push", "range_pop", "mark")),
        Patch("torch.cuda", "initial_seed", lambda *call: torch.initial_seed(), "the host's"),
        *(Patch("torch.cuda", name, giving(value), nothing) for name, value in _QUIET.items()),
        Patch("torch.cuda", "device.__init__", giving(None), nothing),
        Patch("torch.cuda", "device.__enter__", giving(None), nothing),
        Patch("torch.cuda", "device.__exit__", giving(False), nothing),
        Patch("torch.cuda", "StreamContext.__init__", giving(None), nothing),
        Patch("torch.cuda", "StreamContext.__enter__", giving(None), nothing),
        Patch("torch.cuda", "StreamContext.__exit__", giving(None), nothing),
        *(Patch("torch.cuda", name, stream, nothing) for name in ("current_stream", "default_stream")),
        Patch("torch.cuda.streams", "Stream.__new__", stream, nothing),
        Patch("torch.cuda.streams", "Event.__new__", event, nothing),
        Patch("torch", "Tensor.pin_memory", pinned, nothing),
        Patch("torch", "Tensor.record_stream", giving(None), nothing),
    ]


class _Stream:
    """What is asked of it is done already."""

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()

    def synchronize(self) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *error: object) -> None: ...


class _Event:
    """A moment of this process."""

    def __init__(self) -> None:
        self._at = time.perf_counter()

    def record(self, stream: Any = None) -> None:
        self._at = time.perf_counter()

    def elapsed_time(self, end: _Event) -> float:
        """Milliseconds between two events."""
        return (end._at - self._at) * 1000

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...

    def wait(self, stream: Any = None) -> None: ...
