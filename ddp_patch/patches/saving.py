"""torch.save, and what other libraries have like it: once per job, and finished when it returns.

How a file is written, so that nobody reads a part of it: ``effects/atomic_saving.py``.
"""

from __future__ import annotations

import os
from typing import Any

from ..batch.forms import full_tensor
from ..batch.tensor import BatchTensor
from ..patch import Args, Kwargs, Patch
from ..session import Session
from ..structure import map_leaves

_DCP = "torch.distributed.checkpoint.state_dict_saver"
_ONCE = "rank 0 writes, atomically; all ranks wait, and fail as it fails"


def _save(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
    def bind(obj: Any, f: Any, *rest: Any, **options: Any) -> None:
        if not isinstance(f, (str, os.PathLike)):  # a file object, which is the script's own on every rank
            wrapped(obj, f, *rest, **options)
            return
        session.checkpoints.save(
            "torch.save",
            f,
            obj,
            lambda stream: wrapped(obj, stream, *rest, **options),
            lambda: wrapped(obj, f, *rest, **options),
        )

    bind(*args, **kwargs)


def _load(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    def bind(f: Any, map_location: Any = None, *rest: Any, **options: Any) -> Any:
        return wrapped(session.checkpoints.leaders(f), session.device_map.map_location(map_location), *rest, **options)

    return bind(*args, **kwargs)


def compiled(what: str, *names: str) -> Any:
    """What C++ writes into a file of that name.

    Args:
        what: saves.
        names: of its parameters, up to that of the file.
    """

    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        if not (arguments.keys() >= {*names} and isinstance(arguments[names[-1]], (str, os.PathLike))):
            wrapped(*args, **kwargs)
            return
        *leading, f = (arguments.pop(name) for name in names)

        def write(target: Any) -> None:
            wrapped(*leading, target, *args[len(names) :], **arguments)

        session.checkpoints.save(what, f, None, write, lambda: write(f), alone=True)

    return call


def _save_file(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
    def bind(tensors: Any, filename: Any, *rest: Any, **options: Any) -> None:
        session.checkpoints.save(
            "safetensors.save_file",
            filename,
            tensors,
            lambda path: wrapped(wholly(tensors), path, *rest, **options),
            lambda: wrapped(wholly(tensors), filename, *rest, **options),
            by_name=True,
        )

    bind(*args, **kwargs)


def _save_of_accelerate(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
    def bind(obj: Any, f: Any, *rest: Any, **options: Any) -> None:
        if not isinstance(f, (str, os.PathLike)):
            wrapped(obj, f, *rest, **options)
            return
        session.checkpoints.save(
            "accelerate.save",
            f,
            obj,
            lambda path: wrapped(wholly(obj), path, *rest, **options),
            lambda: wrapped(wholly(obj), f, *rest, **options),
            by_name=True,
        )

    bind(*args, **kwargs)


def _save_folder(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    def bind(state_dict: dict[str, Any], *, checkpoint_id: Any = None, **options: Any) -> Any:
        # What has a state_dict is asked for it, as torch.distributed.checkpoint.save would, and by every rank.
        states = {name: v.state_dict() if isinstance(v, Stateful) else v for name, v in state_dict.items()}
        states = wholly(states)
        path = getattr(options.get("storage_writer"), "path", ".") if checkpoint_id is None else checkpoint_id
        return session.checkpoints.save_folder(
            "torch.distributed.checkpoint.save", path, lambda: wrapped(states, checkpoint_id=checkpoint_id, **options)
        )

    from torch.distributed.checkpoint.stateful import Stateful  # noqa: PLC0415 — the script has imported it

    return bind(*args, **kwargs)


def wholly(data: Any) -> Any:
    """Give batches as the tensors that one process would have; every rank has gathered them already."""
    return map_leaves(lambda leaf: full_tensor(leaf) if isinstance(leaf, BatchTensor) else leaf, data)


_HERE = "to this rank's device, wherever `map_location`, or nothing, would have put it"

PATCHES = (
    Patch("torch.jit._serialization", "save", compiled("torch.jit.save", "m", "f"), _ONCE, also=("torch.jit:save",)),
    Patch("torch.jit._script", "RecursiveScriptModule.save", compiled("ScriptModule.save", "f"), _ONCE),
    Patch("torch.export", "save", compiled("torch.export.save", "ep", "f"), _ONCE),
    Patch("torch.serialization", "save", _save, _ONCE, also=("torch:save",)),
    Patch("torch.serialization", "load", _load, _HERE, also=("torch:load",)),
    Patch(_DCP, "save", _save_folder, _ONCE, when_imported="torch.distributed.checkpoint"),
    Patch("safetensors.torch", "save_file", _save_file, _ONCE, when_imported="safetensors.torch"),
    Patch("safetensors.numpy", "save_file", _save_file, _ONCE, when_imported="safetensors.numpy"),
    Patch(
        "accelerate.utils.other",
        "save",
        _save_of_accelerate,
        _ONCE,
        also=("accelerate.utils:save",),
        when_imported="accelerate.utils.other",
    ),
)
