"""nn.DataParallel: the same class and the same objects, with DDP doing the work.

Every rank is one device. Without accelerator DataParallel passes through to its module, and so it does here; with
accelerators it gives 0-dim outputs back as one value per device, which are the ranks.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..batch.tensor import BatchTensor
from ..batch.world import World
from ..errors import BatchError
from ..launch.job import Job
from ..patcher import Patch
from ..replica.probe import _twin, _undisturbed
from ..replica.replicas import Replicas
from ..replica.rows import detached, whole_arguments
from ..structure import leaves, map_leaves

_TO_CPU = -1  # torch's output_device for the host
_NAMED_ONE = "_ddp_patch_named_one_device"  # on the wrapper, so that copies and pickles of it keep it
_DIM = "_ddp_patch_dim"


def patches(replicas: Replicas, job: Job, world: World) -> list[Patch]:
    """Rows for ``nn.DataParallel`` and ``nn.parallel.data_parallel``."""
    wrappers: weakref.WeakSet[nn.DataParallel[Any]] = weakref.WeakSet()
    scalars = _Scalars(replicas, world)

    def init(wrapped: Any, instance: nn.DataParallel[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        def build(module: Any, device_ids: Any = None, output_device: Any = None, dim: int = 0) -> None:
            _note_fewer("nn.DataParallel", device_ids, world)
            if job.device.type == "cpu":
                wrapped(module, device_ids, output_device, dim)
                if dim:  # torch returns before it sets self.dim on a host without accelerator
                    vars(instance)[_DIM] = dim
            else:
                wrapped(module, [job.device], _TO_CPU if output_device == _TO_CPU else job.device, dim)
            if _count(device_ids) == 1:
                vars(instance)[_NAMED_ONE] = True
            wrappers.add(instance)

        build(*args, **kwargs)
        settle_discovery()

    def settle_discovery() -> None:
        # A script says itself what to distribute by wrapping it; but not by wrapping a frozen net, which trains
        # nothing, nor by a forward of its own, which calls the module in a way that is not known.
        replicas.discovering = not any(
            not _overrides(wrapper, "forward") and _trains(wrapper.module) for wrapper in wrappers
        )

    def forward(wrapped: Any, instance: nn.DataParallel[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        own = vars(instance)
        devices = own.get("device_ids")
        if devices and job.device.type != "cpu":
            _bind(instance, job)
        if replicas.inside:
            return wrapped(*args, **kwargs)
        module, dim = instance.module, own.get("dim", own.get(_DIM, 0))
        if replicas.replica_of(module) is None:
            settle_discovery()  # it may have been frozen since it was wrapped
            why = "wrapped in nn.DataParallel by the script"
        else:
            why = ""
        if not devices:
            return run(module, args, kwargs, dim, False, why)
        one = own.get(_NAMED_ONE, False)
        gathers = not one and _overrides(instance, "gather")
        if _overrides(instance, "scatter"):
            args, kwargs = _scattered_by(instance, args, kwargs)
        # A gather of the script's own gets one output, that of all rows.
        result = run(module, args, kwargs, dim, not (one or gathers), why)
        if gathers:
            return instance.gather([result], own.get("output_device", job.device))
        return _to_host(result) if own.get("output_device") == _TO_CPU and not one else result

    def functional(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def bind(
            module: nn.Module,
            inputs: Any,
            device_ids: Any = None,
            output_device: Any = None,
            dim: int = 0,
            module_kwargs: dict[str, Any] | None = None,
        ) -> Any:
            given = inputs if isinstance(inputs, tuple) else () if inputs is None else (inputs,)
            keywords = module_kwargs or {}
            if replicas.inside:  # the rows of an enclosing module: torch would spread them over other ranks' devices
                return module(*given, **keywords)
            _note_fewer("nn.parallel.data_parallel", device_ids, world)
            vector = job.device.type != "cpu" and _count(device_ids) != 1
            result = run(module, given, keywords, dim, vector, "called through nn.parallel.data_parallel")
            return _to_host(result) if output_device == _TO_CPU and vector else result

        return bind(*args, **kwargs)

    def run(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dim: int, vector: bool, why: str) -> Any:
        if job.device.type != "cpu":  # DataParallel takes inputs from any device
            args, kwargs = map_leaves(to_device, args), map_leaves(to_device, kwargs)
        replica = replicas.replica_of(module) or replicas.make(module, why)
        if not vector:
            return replicas.call(replica, module, args, kwargs, dim)
        scalars.learn(module, args, kwargs, dim)
        return scalars.as_vectors(
            module, replicas.call(replica, module, args, kwargs, dim, True), *_batch(args, kwargs, dim)
        )

    def to_device(leaf: Any) -> Any:
        return leaf.to(job.device) if isinstance(leaf, Tensor) and leaf.device != job.device else leaf

    where = "torch.nn.parallel.data_parallel"
    return [
        Patch(where, "DataParallel.__init__", init, "binds to this rank's device"),
        Patch(where, "DataParallel.forward", forward, "runs on this rank's rows under DDP"),
        Patch(where, "data_parallel", functional, "runs on this rank's rows under DDP", everywhere=True),
    ]


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
    devices, own = instance.device_ids, job.device.index
    if devices == [own]:
        return
    if len(devices) == 1:
        vars(instance)[_NAMED_ONE] = True
    instance.device_ids, instance.src_device_obj = [own], job.device
    if vars(instance).get("output_device") != _TO_CPU:
        instance.output_device = own


def _scattered_by(
    instance: nn.DataParallel[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
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


class _Scalars:
    """Gives 0-dim outputs back as vectors where a module did not run on rows: for short batches, say.

    Every entry is then the value of the whole batch, or its share if the values of parts add up to it.
    """

    _TRIES = 10  # for outputs that are 0, so that nothing can be told from them

    def __init__(self, replicas: Replicas, world: World) -> None:
        self._replicas = replicas
        self._world = world
        # module -> by training mode, of each 0-dim output by path: do the values of parts add up? None: not seen yet
        self._adds_up: weakref.WeakKeyDictionary[nn.Module, dict[bool, dict[str, bool | None]]] = (
            weakref.WeakKeyDictionary()
        )
        self._tries: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()

    def learn(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dim: int) -> None:
        """Try the module on a batch and its halves, once for each mode. Before the call, which may leave a graph."""
        known = self._adds_up.setdefault(module, {})
        tries = self._tries.get(module, 0)
        if module.training in known and (tries >= self._TRIES or None not in known[module.training].values()):
            return
        rows, at = _batch(args, kwargs, dim)
        if rows is None or rows < 2:
            return
        self._tries[module] = tries + 1
        args, kwargs = whole_arguments(args, kwargs)
        own = self._try(module, args, kwargs, rows, at)
        known[module.training] = self._world.share([own])[0][0]  # rank 0's view of it, to decide alike

    def as_vectors(self, module: nn.Module, result: Any, rows: int | None, at: int) -> Any:
        """One value per device that DataParallel would have used."""
        paths = {id(leaf): path for path, leaf in leaves(result) if isinstance(leaf, Tensor) and leaf.dim() == 0}
        if not paths:
            return result
        count = self._world.size if rows is None else min(rows, self._world.size)
        known = self._adds_up.get(module, {}).get(module.training, {})

        def vector(leaf: Any) -> Any:
            if id(leaf) not in paths:
                return leaf
            path = paths[id(leaf)]
            if rows is None or rows < 2:  # every device computes the same, or there is one
                return leaf.reshape(1).repeat(count)
            if path not in known:
                raise BatchError(
                    f"{type(module).__name__} under nn.DataParallel returned a 0-dim tensor (output{path}) for a batch "
                    f"that was not dealt to the ranks, and it could not be tried on parts of the batch, so it cannot "
                    "be told what each device would have returned. Return one entry per row from forward and reduce "
                    "over them outside, or write nn.DataParallel(model, device_ids=[0]) for the scalar itself."
                )
            if not known[path] or leaf.dtype is torch.bool:
                return leaf.reshape(1).repeat(count)
            if leaf.is_floating_point() or leaf.is_complex():
                return (leaf / count).reshape(1).repeat(count)
            return (leaf + torch.arange(count, device=leaf.device)) // count  # adds up to it exactly

        return map_leaves(vector, result)

    def _try(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], rows: int, at: int
    ) -> dict[str, bool | None]:
        half = rows // 2
        try:
            twin = _twin(module)
            with self._replicas.back_inside(True, False), _undisturbed():
                whole, first, second = (
                    _scalars_of(twin(*_part(args, rows, at, *span), **_part(kwargs, rows, at, *span)))
                    for span in ((0, rows), (0, half), (half, rows - half))
                )
        except Exception:  # noqa: BLE001 — it runs the author's code; as_vectors says what follows, if it matters
            return {}
        told: dict[str, bool | None] = {}
        for path, value in whole.items():
            if path in first and path in second:
                together = first[path] + second[path]
                mean = (first[path] * half + second[path] * (rows - half)) / rows
                told[path] = None if together == mean else abs(value - together) < abs(value - mean)
        return told


def _batch(args: tuple[Any, ...], kwargs: dict[str, Any], dim: int) -> tuple[int | None, int]:
    """How many rows DataParallel would scatter, and along which dimension; None if there is nothing to scatter."""
    tensors = [leaf for _, leaf in leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    for leaf in tensors:
        if isinstance(leaf, BatchTensor):
            return leaf._layout.total, leaf._layout.dim
    for leaf in tensors:
        if leaf.dim() > dim:
            return leaf.shape[dim], dim
    return (None if args or kwargs else 1), dim


def _part(value: Any, rows: int, at: int, start: int, length: int) -> Any:
    def cut(leaf: Any) -> Any:
        scattered = isinstance(leaf, Tensor) and leaf.dim() > at and leaf.shape[at] == rows
        return leaf.narrow(at, start, length) if scattered else leaf

    return detached(map_leaves(cut, value))


def _scalars_of(result: Any) -> dict[str, float]:
    return {
        path: leaf.item()
        for path, leaf in leaves(result)
        if isinstance(leaf, Tensor) and leaf.dim() == 0 and not leaf.is_complex()
    }
