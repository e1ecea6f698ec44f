"""nn.DataParallel: the same class and the same objects, with DDP doing the work.

Every rank is one device. Without accelerator, or with one, DataParallel passes through to its module, and so it does
here; where a process sees several it gives 0-dim outputs back as one value per device, which are the ranks.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from ..batch.world import World
from ..calling.calls import Call
from ..calling.redirects import is_of_one_rank
from ..calling.swap import original_class
from ..errors import BatchError
from ..job.job import Job
from ..patch import Args, Kwargs, Patch
from ..replica.scalars import batch_of
from ..session import Session
from ..structure import map_leaves

_TO_CPU = -1  # torch's output_device for the host
_NAMED_ONE = "_ddp_patch_named_one_device"  # on the wrapper, so that copies and pickles of it keep it
_DIM = "_ddp_patch_dim"


def _init(session: Session, wrapped: Any, instance: nn.DataParallel[Any], args: Args, kwargs: Kwargs) -> None:
    def build(module: Any, device_ids: Any = None, output_device: Any = None, dim: int = 0) -> None:
        _note_fewer("nn.DataParallel", device_ids, session.world)
        if session.job.device.type == "cpu":
            wrapped(module, device_ids, output_device, dim)
            if dim:  # torch returns before it sets self.dim on a host without accelerator
                vars(instance)[_DIM] = dim
        else:
            wrapped(module, [session.job.device], _TO_CPU if output_device == _TO_CPU else session.job.device, dim)
        if _count(device_ids) == 1:
            vars(instance)[_NAMED_ONE] = True
        session.wrappers.add(instance)

    build(*args, **kwargs)
    _settle_discovery(session)


def _settle_discovery(session: Session) -> None:
    # A script says itself what to distribute by wrapping it; but not by wrapping a frozen net, which trains
    # nothing, nor by a forward of its own, which calls the module in a way that is not known.
    session.replicas.discovering = not any(
        not _overrides(wrapper, "forward") and _trains(wrapper.module) for wrapper in session.wrappers
    )


def _forward(session: Session, wrapped: Any, instance: nn.DataParallel[Any], args: Args, kwargs: Kwargs) -> Any:
    attributes = vars(instance)
    devices = attributes.get("device_ids")
    if devices and session.job.device.type != "cpu":
        _bind(instance, session.job)
    if session.replicas.forwards.is_bypassed or is_of_one_rank(session.world, instance.module):
        return wrapped(*args, **kwargs)
    module, dim = instance.module, attributes.get("dim", attributes.get(_DIM, 0))
    if session.replicas.registry.of(module) is None:
        session.wrappers.add(instance)  # a copy, or out of a file
        _settle_discovery(session)  # it may have been frozen since it was wrapped
        why = "wrapped in nn.DataParallel by the script"
    else:
        why = ""
    if not devices:
        return _run(session, module, args, kwargs, dim, False, why)
    one = attributes.get(_NAMED_ONE, False) or session.job.place.visible == 1
    gathers = not one and _overrides(instance, "gather")
    if _overrides(instance, "scatter"):
        args, kwargs = _scattered_by(instance, args, kwargs)
    # A gather of the script's own gets one output, that of all rows.
    result = _run(session, module, args, kwargs, dim, not (one or gathers), why)
    if gathers:
        return instance.gather([result], attributes.get("output_device", session.job.device))
    return _to_host(result) if attributes.get("output_device") == _TO_CPU and not one else result


def _functional(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    def bind(
        module: nn.Module,
        inputs: Any,
        device_ids: Any = None,
        output_device: Any = None,
        dim: int = 0,
        module_kwargs: dict[str, Any] | None = None,
    ) -> Any:
        positional = inputs if isinstance(inputs, tuple) else () if inputs is None else (inputs,)
        keywords = module_kwargs or {}
        # The rows of an enclosing module: torch would spread them over other ranks' devices.
        if session.replicas.forwards.is_bypassed or is_of_one_rank(session.world, module):
            return module(*positional, **keywords)
        _note_fewer("nn.parallel.data_parallel", device_ids, session.world)
        gathers_scalars = session.job.device.type != "cpu" and _count(device_ids) != 1 and session.job.place.visible > 1
        result = _run(
            session, module, positional, keywords, dim, gathers_scalars, "called through nn.parallel.data_parallel"
        )
        return _to_host(result) if output_device == _TO_CPU and gathers_scalars else result

    return bind(*args, **kwargs)


def _run(
    session: Session, module: nn.Module, args: Args, kwargs: Kwargs, dim: int, gathers_scalars: bool, why: str
) -> Any:
    if session.job.device.type != "cpu":  # DataParallel takes inputs from any device
        args, kwargs = session.device_map.bring((args, kwargs))
    if session.replicas.registry.of(module) is None:
        session.replicas.registry.make(module, why)
    call = Call(module, functools.partial(original_class(module).__call__, module), args, kwargs, dim)
    if not gathers_scalars:
        return session.replicas.call(call)
    session.scalars.learn(module, args, kwargs, dim)
    result = session.replicas.call(dataclasses.replace(call, gathers_scalars=True))
    return session.scalars.as_vectors(module, result, *batch_of(args, kwargs, dim))


def _count(device_ids: Any) -> int | None:
    return len(device_ids) if hasattr(device_ids, "__len__") else None


def _note_fewer(what: str, device_ids: Any, world: World) -> None:
    count = _count(device_ids)
    if count is not None and count < world.size:
        world.ledger.note(f"{what} names device_ids={list(device_ids)}; all {world.size} ranks work, one device each")


def _overrides(instance: nn.DataParallel[Any], name: str) -> bool:
    # By owner, since a patched method is another object at every access.
    return next(owner for owner in type(instance).__mro__ if name in vars(owner)) is not nn.DataParallel


def _trains(module: Any) -> bool:
    return isinstance(module, nn.Module) and any(parameter.requires_grad for parameter in module.parameters())


def _bind(instance: nn.DataParallel[Any], job: Job) -> None:
    """Point a wrapper at this rank's device, if it came out of a file or the script assigned other devices."""
    devices, index = instance.device_ids, job.device.index
    if devices == [index]:
        return
    if len(devices) == 1:
        vars(instance)[_NAMED_ONE] = True
    instance.device_ids, instance.src_device_obj = [index], job.device
    if vars(instance).get("output_device") != _TO_CPU:
        instance.output_device = index


def _scattered_by(instance: nn.DataParallel[Any], args: Args, kwargs: Kwargs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Let a subclass's own ``scatter`` unpack its arguments for the one device of this rank."""
    inputs: Sequence[Any]
    keywords: Sequence[Any]
    inputs, keywords = instance.scatter(args, kwargs, instance.device_ids)
    if max(len(inputs), len(keywords)) > 1:
        name = type(instance).__name__
        raise BatchError(
            f"{name}.scatter was asked for device_ids={list(instance.device_ids)}, this rank's only device, and gave "
            f"{len(inputs)} inputs and {len(keywords)} keyword arguments, of which a rank can use one. Write "
            f"{name}.scatter so that it returns one entry per device in device_ids, the whole batch for one device."
        )
    return tuple(inputs[0]) if inputs else (), dict(keywords[0]) if keywords else {}


def _to_host(result: Any) -> Any:
    move: Callable[[Any], Any] = lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) else leaf  # noqa: E731
    return map_leaves(move, result)


_WHERE = "torch.nn.parallel.data_parallel"

PATCHES = (
    Patch(_WHERE, "DataParallel.__init__", _init, "binds to this rank's device"),
    Patch(_WHERE, "DataParallel.forward", _forward, "runs on this rank's rows under DDP"),
    Patch(_WHERE, "data_parallel", _functional, "runs on this rank's rows under DDP"),
)
