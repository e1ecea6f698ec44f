"""Devices that a script names: all are this rank's own, and on a host without CUDA its CPU or whatever it has.

Only names are redirected, where they are used: ``torch.device("cuda:0")`` stays what it is. No operation is intercepted
that was not given a device.
"""

from __future__ import annotations

from typing import Any

import torch

from ..batch.factories import as_subclass, of_batches
from ..batch.pending_tensor import PendingTensor, wait_for
from ..patch import Args, Kwargs, Patch
from ..session import Session

_FACTORIES = (
    *("tensor", "as_tensor", "asarray", "scalar_tensor", "zeros", "ones", "empty", "full", "rand", "randn", "randint"),
    *("randperm", "arange", "range", "linspace", "logspace", "eye", "normal", "empty_strided", "empty_permuted"),
    *("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like"),
    *("tril_indices", "triu_indices", "sparse_coo_tensor", "sparse_csr_tensor", "bartlett_window", "blackman_window"),
    *("hamming_window", "hann_window", "kaiser_window", "sparse_csc_tensor", "sparse_bsr_tensor", "sparse_bsc_tensor"),
    *("sparse_compressed_tensor", "fft.fftfreq", "fft.rfftfreq"),
)
HERE = "on this rank's device, where a name of an accelerator is given"
_NEW = ("new_tensor", "new_zeros", "new_ones", "new_empty", "new_full", "new_empty_strided", "new")


def _with_device(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    for value in (*args, *kwargs.values()):
        if isinstance(value, PendingTensor):  # read below torch's overrides, as a number
            wait_for(value)
    if "device" in kwargs:
        kwargs["device"] = session.device_map.of(kwargs["device"])  # wrapt made the dict for this call
    return wrapped(*args, **kwargs)


def _to(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    if args:
        return wrapped(session.device_map.of(args[0]), *args[1:], **kwargs)
    return _with_device(session, wrapped, instance, args, kwargs)


def _cuda(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    def bind(device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format) -> Any:
        return instance.to(device=session.device_map.device, non_blocking=non_blocking, memory_format=memory_format)

    return bind(*args, **kwargs)


def _packed(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    return instance.to(device=session.device_map.device, **{name: kwargs[name] for name in kwargs if name != "device"})


def where_named(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    """Call a function with this rank's device for each that it is given."""
    return wrapped(
        *map(session.device_map.of, args), **{name: session.device_map.of(value) for name, value in kwargs.items()}
    )


def _generator(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    if instance is not torch.Generator:
        return wrapped(*args, **kwargs)
    return where_named(session, wrapped, instance, args, kwargs)


def _load(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    def bind(f: Any, map_location: Any = None, *rest: Any, **options: Any) -> Any:
        device = session.device_map.device
        if map_location or device.type == "cpu":
            return wrapped(f, session.device_map.of(map_location) if map_location else str(device), *rest, **options)
        loaded = wrapped(f, None, *rest, **options)
        places = {tensor.device for tensor in (*loaded.parameters(), *loaded.buffers())}
        return loaded if places <= {device, torch.device("cpu")} else loaded.to(device)

    return bind(*args, **kwargs)


def _count(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> int:
    count: int = wrapped(*args, **kwargs)
    # A script that multiplies its batch by this would let it grow twice.
    is_asked = session.options.batch == "per_device" and session.owners.caller() == "script"
    return min(1, count) if is_asked else count


def _place(name: str) -> tuple[str, str]:
    module, _, function = f"torch.{name}".rpartition(".")
    return module, function


PATCHES = (
    Patch("torch", "Tensor.to", _to, HERE),
    Patch("torch", "Tensor.cuda", _cuda, HERE),
    Patch("torch.nn.utils.rnn", "PackedSequence.cuda", _packed, HERE),
    *(Patch(*_place(name), of_batches(name, _with_device), HERE) for name in _FACTORIES),
    Patch("torch", "Tensor.as_subclass", as_subclass, "sees the whole batch"),
    *(Patch("torch", f"Tensor.{name}", of_batches(name, _with_device), HERE) for name in _NEW),
    Patch("torch", "set_default_device", where_named, HERE),
    Patch("torch.utils._device", "DeviceContext.__init__", where_named, HERE),
    # The class stays in its place, for annotations and isinstance (its metaclass is a Python class from torch 2.13 on).
    Patch("torch", "Generator.__class__.__call__", _generator, HERE),
    Patch("torch.jit", "load", _load, HERE),
    *(
        Patch(module, "device_count", _count, 'with `batch="per_device"`, one, where the script asks')
        for module in ("torch.cuda", "torch.accelerator")
    ),
)
