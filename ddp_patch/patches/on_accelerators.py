"""torch.cuda on a host that has it: devices are this rank's own, and what is measured is all ranks'."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from ..errors import BatchError
from ..ledger import script_line
from ..patch import Args, Kwargs, Patch, Wrapper
from ..session import Session
from .device import HERE, where_named

# torch.cuda's functions whose first argument, or ``device``, is a device.
_OF_DEVICES = (
    *("synchronize", "memory_summary", "reset_peak_memory_stats", "current_stream", "default_stream"),
    *("utilization", "reset_accumulated_memory_stats", "stream"),
)
_ASKED = (("torch.cuda", "current_device"), ("torch.accelerator", "current_device_index"))
_CHOOSING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_CAPTURES = {
    "graph.__enter__": (),
    "CUDAGraph.capture_begin": (),
    "make_graphed_callables": ("torch.cuda:make_graphed_callables",),
}
_TAKEN = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_stats")
_MEASURED = {
    ("cuda", "mem_get_info"): min,
    ("accelerator", "get_memory_info"): min,
    **{(module, name): max for module in ("cuda", "accelerator") for name in _TAKEN},
}


def _stream(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    def bind(kind: type, device: Any = None, *rest: Any, **options: Any) -> Any:
        return wrapped(kind, None if device is None else session.device_map.of(device), *rest, **options)

    return bind(*args, **kwargs)


def _state(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    def bind(new_state: Any, device: Any = "cuda") -> Any:
        return wrapped(new_state, session.device_map.of(device))

    return bind(*args, **kwargs)


def _chosen(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
    for place in (*args, *kwargs.values()):
        session.device_map.choose(place)
    where_named(session, wrapped, instance, args, kwargs)


def _present(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> int:
    current: int = wrapped(*args, **kwargs)
    # ``if torch.cuda.current_device() == 0``, which one process is at, and not what rank 1 has.
    return session.device_map.chosen if session.owners.caller() == "script" else current


def _read_state(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    def bind(device: Any = "cuda") -> Any:  # by default the thread's, which is the first one in a new thread
        return wrapped(session.device_map.of(device))

    return bind(*args, **kwargs)


def _states(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> list[Any]:
    state = torch.cuda.get_rng_state(session.device_map.device)
    return [state.clone() for _ in range(torch.cuda.device_count())]


def _set_states(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
    def bind(new_states: Any) -> None:
        for first in itertools.islice(new_states, 1):  # one process draws on its first device
            torch.cuda.set_rng_state(first, session.device_map.device)

    bind(*args, **kwargs)


def _variable(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
    def bind(key: str, value: str) -> None:
        before = instance.get(key)
        wrapped(key, value)
        if key in _CHOOSING and value != before:
            session.ledger.warn(
                f"{script_line()} sets {key} to {value!r} where every rank has its device already, so it has no "
                "effect. Set it above ddp_patch.enable(), or in the shell"
            )

    bind(*args, **kwargs)


def _captured(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    if _is_torchs(sys._getframe(1)):  # a compiler's, of what it compiled
        return wrapped(*args, **kwargs)
    raise BatchError(
        f"{script_line()} captures a CUDA graph, which would hold this rank's rows and none of the other ranks'. "
        'Write model = torch.compile(model, mode="reduce-overhead") instead, which captures what can be, on rows.'
    )


def measured(choose: Callable[..., Any]) -> Wrapper:
    """A wrapper for what measures a device: each number becomes the least or the greatest of all ranks'."""

    def chosen(every: list[Any]) -> Any:
        if isinstance(every[0], dict):
            return type(every[0])((key, choose(each[key] for each in every if key in each)) for key in every[0])
        return tuple(map(choose, zip(*every, strict=True))) if isinstance(every[0], tuple) else choose(every)

    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        local = wrapped(
            *map(session.device_map.of, args), **{name: session.device_map.of(value) for name, value in kwargs.items()}
        )
        return local if _is_torchs(sys._getframe(1)) else chosen(session.agreed(local))  # a compiler's, say

    return call


def _is_torchs(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("torch.")


_TOO_LATE = "a choice of devices (`CUDA_VISIBLE_DEVICES`) below the line is said to have no effect"
_REFUSED = (
    'refused, since a captured step holds this rank\'s rows: write `torch.compile(model, mode="reduce-overhead")`'
)
_PRESENT = "where the script asks, the one that one process is at"
_AGREED = "the ranks' agreed, so that what a script decides by it is the same on all"

PATCHES = (
    Patch("os", "_Environ.__setitem__", _variable, _TOO_LATE),
    *(Patch("torch.cuda", name, where_named, HERE) for name in _OF_DEVICES),
    Patch("torch.cuda", "get_rng_state", _read_state, HERE),
    Patch("torch.cuda", "set_rng_state", _state, HERE),
    Patch("torch.cuda", "get_rng_state_all", _states, HERE, also=("torch.cuda.random:get_rng_state_all",)),
    Patch("torch.cuda", "set_rng_state_all", _set_states, HERE, also=("torch.cuda.random:set_rng_state_all",)),
    *(
        Patch(f"torch.{module}", name, measured(choose), _AGREED, also=(f"torch.{module}.memory:{name}",))
        for (module, name), choose in _MEASURED.items()
    ),
    Patch("torch.cuda", "device.__init__", where_named, HERE),
    *(Patch("torch.cuda.graphs", name, _captured, _REFUSED, also=also) for name, also in _CAPTURES.items()),
    Patch("torch.cuda.streams", "Stream.__new__", _stream, HERE),
    Patch("torch.accelerator", "synchronize", where_named, HERE),
    Patch("torch.cuda", "set_device", _chosen, HERE),
    Patch("torch.accelerator", "set_device_index", _chosen, HERE),
    *(Patch(module, name, _present, _PRESENT) for module, name in _ASKED),
)
