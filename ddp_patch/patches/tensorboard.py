"""TensorBoard writers, torch's and tensorboardX's: one event file per job.

Every rank summarises what it is given, which may gather batches or run the model (``add_graph``); rank 0 writes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import wrapt

from ..batch.forms import whole_of
from ..batch.tensor import BatchTensor
from ..effects.turns import Turns
from ..patcher import Patch
from ..replica.forwards import ON_WHOLE
from ..replica.replicas import Replicas
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


def patch_when_imported(turns: Turns, replicas: Replicas, apply: Callable[[list[Patch]], None]) -> None:
    """Take over the writers as soon as the script imports them.

    Args:
        turns: of the ranks.
        replicas: of the models.
        apply: applies patches, unless the session has ended.
    """

    def open_file(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        def act() -> str:
            wrapped(*args, **kwargs)
            return str(instance.get_logdir())

        if turns.are_taken():
            folder = turns.take("SummaryWriter", act)
        elif turns.are_silent():
            folder = str((args or list(kwargs.values()))[0])
        else:
            act()
            return
        if not turns.is_leader:
            instance.event_writer = _NoEvents(folder)
            instance._default_metadata = {}  # of tensorboardX

    def begin(folder: str) -> Any:
        def call(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            wrapped(*args, **kwargs)
            if getattr(instance, "file_writer", None) is not None:
                setattr(instance, folder, instance.file_writer.get_logdir())  # named by rank 0's clock

        return call

    def finish(name: str) -> Any:
        def call(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if turns.are_taken():
                turns.follow(f"SummaryWriter.{name}", lambda: wrapped(*args, **kwargs), hands_over=False)
            else:
                wrapped(*args, **kwargs)

        return call

    def numbers(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # tensorboardX 2.6 looks for "torch" in the name of the type.
        return wrapped(
            *(arg.detach().cpu().numpy() if isinstance(arg, torch.Tensor) else arg for arg in args), **kwargs
        )

    def graph(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = map_leaves(_whole, (args, kwargs))
        with replicas.forwards.back_at(ON_WHOLE):  # tracing records what the module does to a whole batch
            return wrapped(*args, **kwargs)

    for module, folder in _WRITERS.items():
        rows = [
            Patch(module, "FileWriter.flush", finish("flush"), "rank 0's file is written when it returns"),
            Patch(module, "FileWriter.close", finish("close"), "rank 0's file is written when it returns"),
            Patch(module, "FileWriter.__init__", open_file, "rank 0 writes"),
            Patch(module, "SummaryWriter.__init__", begin(folder), "all know rank 0's folder"),
        ]
        wrapt.register_post_import_hook(functools.partial(_apply, apply, rows), module)
    also = ("torch.utils.tensorboard.writer:graph",)
    rows = [Patch("torch.utils.tensorboard._pytorch_graph", "graph", graph, "traces whole batches", also=also)]
    wrapt.register_post_import_hook(functools.partial(_apply, apply, rows), "torch.utils.tensorboard.writer")
    rows = [Patch("tensorboardX.x2num", "make_np", numbers, "takes batches", everywhere=True)]
    wrapt.register_post_import_hook(functools.partial(_apply, apply, rows), "tensorboardX.writer")


def _whole(leaf: Any) -> Any:
    return whole_of(leaf).detach() if isinstance(leaf, BatchTensor) else leaf


def _apply(apply: Callable[[list[Patch]], None], rows: list[Patch], module: Any) -> None:
    apply(rows)
