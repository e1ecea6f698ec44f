"""Devices that a script names: all are this rank's own, and on a host without CUDA its CPU or whatever it has.

Only names are redirected, where they are used: ``torch.device("cuda:0")`` stays what it is. No operation is intercepted
that was not given a device.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from ..batch.factories import as_subclass, of_batches
from ..batch.promised import PromisedTensor, arrive
from ..effects.places import Places
from ..errors import BatchError
from ..ledger import script_line
from ..patcher import Patch
from . import without_cuda

_FACTORIES = (
    *("tensor", "as_tensor", "asarray", "scalar_tensor", "zeros", "ones", "empty", "full", "rand", "randn", "randint"),
    *("randperm", "arange", "range", "linspace", "logspace", "eye", "normal", "empty_strided", "empty_permuted"),
    *("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like"),
    *("tril_indices", "triu_indices", "sparse_coo_tensor", "sparse_csr_tensor", "bartlett_window", "blackman_window"),
    *("hamming_window", "hann_window", "kaiser_window", "sparse_csc_tensor", "sparse_bsr_tensor", "sparse_bsc_tensor"),
    *("sparse_compressed_tensor", "fft.fftfreq", "fft.rfftfreq"),
)
_NEW = ("new_tensor", "new_zeros", "new_ones", "new_empty", "new_full", "new_empty_strided", "new")
# torch.cuda's functions whose first argument, or ``device``, is a device.
_OF_DEVICES = (
    *("set_device", "synchronize", "memory_stats", "memory_summary", "reset_peak_memory_stats", "current_stream"),
    *("default_stream", "get_rng_state", "utilization", "reset_accumulated_memory_stats", "stream"),
)
_CHOOSING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_CAPTURES = {
    "graph.__enter__": (),
    "CUDAGraph.capture_begin": (),
    "make_graphed_callables": ("torch.cuda:make_graphed_callables",),
}
_MEASURED = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")


def patches(
    places: Places,
    agreed: Callable[[Any], list[Any]] = lambda own: [own],
    note: Callable[[str], None] = lambda text: None,
) -> list[Patch]:
    """Rows for what takes a device.

    Args:
        places: where devices are.
        agreed: gives what each rank measured, so that all decide alike.
        note: tells the script's author what has no effect.
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
    return rows + (
        _on_accelerators(places, context, agreed, note) if torch.cuda.is_available() else without_cuda.patches()
    )


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


def _on_accelerators(
    places: Places, context: Any, agreed: Callable[[Any], list[Any]], note: Callable[[str], None]
) -> list[Patch]:
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

    def variable(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        def bind(key: str, value: str) -> None:
            before = instance.get(key)
            wrapped(key, value)
            if key in _CHOOSING and value != before:
                note(
                    f"{script_line()} sets {key} to {value!r} where every rank has its device already, so it has no "
                    "effect. Set it above ddp_patch.enable(), or in the shell"
                )

        bind(*args, **kwargs)

    def captured(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _is_torchs(sys._getframe(1)):  # a compiler's, of what it compiled
            return wrapped(*args, **kwargs)
        raise BatchError(
            f"{script_line()} captures a CUDA graph, which would hold this rank's rows and none of the other ranks'. "
            'Write model = torch.compile(model, mode="reduce-overhead") instead, which captures what can be, on rows.'
        )

    here, decide = "this rank's device", "the ranks' agreed, so that what a script decides by it is the same on all"
    measured = measuring(places, agreed)
    return [
        Patch("os", "_Environ.__setitem__", variable, "says that a choice of devices comes too late"),
        *(Patch("torch.cuda", name, context, here) for name in _OF_DEVICES),
        Patch("torch.cuda", "set_rng_state", state, here),
        Patch("torch.cuda", "get_rng_state_all", states, here, also=("torch.cuda.random:get_rng_state_all",)),
        Patch("torch.cuda", "set_rng_state_all", set_states, here, also=("torch.cuda.random:set_rng_state_all",)),
        *(
            Patch("torch.cuda", name, measured(choose), decide, also=(f"torch.cuda.memory:{name}",))
            for name, choose in {"mem_get_info": min, **dict.fromkeys(_MEASURED, max)}.items()
        ),
        Patch("torch.cuda", "device.__init__", context, here),
        *(
            Patch("torch.cuda.graphs", name, captured, "refused: write torch.compile", also=also)
            for name, also in _CAPTURES.items()
        ),
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
            every = [own] if _is_torchs(sys._getframe(1)) else agreed(own)  # a compiler's, say
            return tuple(map(choose, zip(*every, strict=True))) if isinstance(own, tuple) else choose(every)

        return call

    return of


def _is_torchs(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("torch.")
