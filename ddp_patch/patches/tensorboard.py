"""TensorBoard writers, torch's and tensorboardX's: one event file per job.

Every rank summarises what it is given, which may gather batches or run the model (``add_graph``); rank 0 writes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from ..batch.forms import full_tensor
from ..batch.tensor import BatchTensor
from ..patch import Args, Kwargs, Patch
from ..session import Session
from ..structure import map_leaves

_WRITERS = {"torch.utils.tensorboard.writer": "log_dir", "tensorboardX.writer": "logdir"}  # -> SummaryWriter's folder


class _NoEvents:
    """Stands for the event file of rank 0."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def get_logdir(self) -> str:
        return self._folder

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


def _open_file(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
    def act() -> str:
        wrapped(*args, **kwargs)
        return str(instance.get_logdir())

    folder = str((args or list(kwargs.values()))[0])
    if session.rank_zero.in_lockstep():
        local_folder = os.path.abspath(folder)  # may be named by this rank's clock
        folder = session.rank_zero.barrier_call("SummaryWriter", act, [local_folder])
        session.files.changed(local_folder)
    elif not session.rank_zero.is_silent():
        act()
        return
    if not session.rank_zero.is_leader:
        instance.event_writer = _NoEvents(folder)
        instance._default_metadata = {}  # of tensorboardX


def _begin(folder: str) -> Any:
    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
        wrapped(*args, **kwargs)
        if getattr(instance, "file_writer", None) is not None:
            setattr(instance, folder, instance.file_writer.get_logdir())  # named by rank 0's clock

    return call


def _finish(name: str) -> Any:
    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
        if session.rank_zero.in_lockstep():
            session.rank_zero.call(f"SummaryWriter.{name}", lambda: wrapped(*args, **kwargs), broadcast_result=False)
        else:
            wrapped(*args, **kwargs)

    return call


def _add(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
    if not session.rank_zero.mutes((args, kwargs)):
        wrapped(*args, **kwargs)


def _embedding(folder: str) -> Any:
    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
        if not session.rank_zero.mutes((args, kwargs)):
            args, kwargs = map_leaves(_whole, (args, kwargs))
            where = str(getattr(instance, folder))
            session.checkpoints.save_folder("SummaryWriter.add_embedding", where, lambda: wrapped(*args, **kwargs))

    return call


def _numbers(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    # tensorboardX 2.6 looks for "torch" in the name of the type.
    return wrapped(*(arg.detach().cpu().numpy() if isinstance(arg, torch.Tensor) else arg for arg in args), **kwargs)


def _graph(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    args, kwargs = map_leaves(_whole, (args, kwargs))
    with session.on_whole():  # tracing records what the module does to a whole batch
        return wrapped(*args, **kwargs)


def _whole(leaf: Any) -> Any:
    return full_tensor(leaf).detach() if isinstance(leaf, BatchTensor) else leaf


def _apply(apply: Callable[[list[Patch]], None], rows: list[Patch], module: Any) -> None:
    apply(rows)


_TORCHS, _TENSORBOARDX = _WRITERS
_WRITTEN = "rank 0's file is written when it returns"

PATCHES = (
    *(
        Patch(module, target, wrapper, effect, when_imported=module)
        for module, folder in _WRITERS.items()
        for target, wrapper, effect in (
            ("FileWriter.flush", _finish("flush"), _WRITTEN),
            ("FileWriter.close", _finish("close"), _WRITTEN),
            ("FileWriter.add_event", _add, "adds nothing while a model is tried"),
            ("FileWriter.__init__", _open_file, "rank 0 writes"),
            ("SummaryWriter.__init__", _begin(folder), "all know rank 0's folder"),
            ("SummaryWriter.add_embedding", _embedding(folder), "rank 0 writes its files"),
        )
    ),
    Patch(
        "torch.utils.tensorboard._pytorch_graph",
        "graph",
        _graph,
        "traces whole batches",
        also=(f"{_TORCHS}:graph",),
        when_imported=_TORCHS,
    ),
    Patch("tensorboardX.x2num", "make_np", _numbers, "takes batches", when_imported=_TENSORBOARDX),
)
