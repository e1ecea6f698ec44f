"""CUDA's names on a host without it: a script that asks for its device runs, on the CPU or whatever there is."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

import torch

from ..patch import Args, Kwargs, Patch
from ..session import Session

_TYPES = ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
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


def _as_type(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    return wrapped(*map(_host_type, args), **{name: _host_type(value) for name, value in kwargs.items()})


def _giving(value: Any) -> Any:
    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        return value

    return call


def _pinned(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    return wrapped(*args, **kwargs) if torch.accelerator.is_available() else instance


def _event(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    return _Event()


def _stream(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    return _Stream()


def _host_tensor(name: str) -> Any:
    return lambda session, wrapped, instance, args, kwargs: getattr(torch, name)(*args, **kwargs)


def _host_type(tensor_type: Any) -> Any:
    """What stands for a type of CUDA tensors on a host without them."""
    if isinstance(tensor_type, str):
        return tensor_type.replace("torch.cuda.", "torch.")
    if getattr(tensor_type, "__module__", "") == "torch.cuda" and hasattr(torch, getattr(tensor_type, "__name__", "")):
        return getattr(torch, tensor_type.__name__)
    return tensor_type


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


_NOTHING = "does nothing without CUDA"

PATCHES = (
    *(Patch("torch", name, _as_type, "on the host") for name in ("Tensor.type", "set_default_tensor_type")),
    *(Patch("torch.cuda", f"{name}Tensor", _host_tensor(f"{name}Tensor"), "on the host") for name in _TYPES),
    *(Patch("torch.cuda.nvtx", name, _giving(None), _NOTHING) for name in ("range_push", "range_pop", "mark")),
    Patch("torch.cuda", "initial_seed", lambda *call: torch.initial_seed(), "the host's"),
    *(Patch("torch.cuda", name, _giving(value), _NOTHING) for name, value in _QUIET.items()),
    Patch("torch.cuda", "device.__init__", _giving(None), _NOTHING),
    Patch("torch.cuda", "device.__enter__", _giving(None), _NOTHING),
    Patch("torch.cuda", "device.__exit__", _giving(False), _NOTHING),
    Patch("torch.cuda", "StreamContext.__init__", _giving(None), _NOTHING),
    Patch("torch.cuda", "StreamContext.__enter__", _giving(None), _NOTHING),
    Patch("torch.cuda", "StreamContext.__exit__", _giving(None), _NOTHING),
    *(Patch("torch.cuda", name, _stream, _NOTHING) for name in ("current_stream", "default_stream")),
    Patch("torch.cuda.streams", "Stream.__new__", _stream, _NOTHING),
    Patch("torch.cuda.streams", "Event.__new__", _event, _NOTHING),
    Patch("torch", "Tensor.pin_memory", _pinned, _NOTHING),
    Patch("torch", "Tensor.record_stream", _giving(None), _NOTHING),
)
