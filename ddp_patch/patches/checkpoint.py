"""torch.save, and what other libraries have like it: once per job, atomically, and finished when it returns."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import wrapt

from ..batch.forms import whole_of
from ..batch.tensor import BatchTensor
from ..effects.checkpoints import Checkpoints
from ..effects.places import Places
from ..patcher import Patch
from ..structure import map_leaves

_DCP = "torch.distributed.checkpoint.state_dict_saver"
_ONCE = "rank 0 writes, atomically; all ranks wait"


def patches(checkpoints: Checkpoints, places: Places) -> list[Patch]:
    """Rows for ``torch.save`` and ``torch.load``."""

    def save(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        def bind(obj: Any, f: Any, *rest: Any, **options: Any) -> None:
            if not isinstance(f, (str, os.PathLike)):  # a file object, which is the script's own on every rank
                wrapped(obj, f, *rest, **options)
                return
            checkpoints.save(
                "torch.save",
                f,
                obj,
                lambda stream: wrapped(obj, stream, *rest, **options),
                lambda: wrapped(obj, f, *rest, **options),
            )

        bind(*args, **kwargs)

    def load(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def bind(f: Any, map_location: Any = None, *rest: Any, **options: Any) -> Any:
            return wrapped(checkpoints.leaders(f), places.map_location(map_location), *rest, **options)

        return bind(*args, **kwargs)

    def compiled(what: str) -> Any:
        """What C++ writes into a file of that name."""

        def call(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            def bind(first: Any, *rest: Any, **options: Any) -> None:
                # torch.jit.save(module, f) and module.save(f)
                held, f = ([], first) if instance is not None else ([first], rest[0] if rest else options.pop("f"))
                rest = rest if instance is not None else rest[1:]
                if not isinstance(f, (str, os.PathLike)):
                    wrapped(*held, f, *rest, **options)
                    return

                def write(target: Any) -> None:
                    wrapped(*held, target, *rest, **options)

                checkpoints.save(what, f, None, write, lambda: write(f), alone=True)

            bind(*args, **kwargs)

        return call

    here = "to this rank's device"
    return [
        Patch("torch.jit._serialization", "save", compiled("torch.jit.save"), _ONCE, also=("torch.jit:save",)),
        Patch("torch.jit._script", "RecursiveScriptModule.save", compiled("ScriptModule.save"), _ONCE),
        Patch("torch.export", "save", compiled("torch.export.save"), _ONCE),
        Patch("torch.serialization", "save", save, _ONCE, also=("torch:save",), everywhere=True),
        Patch("torch.serialization", "load", load, here, also=("torch:load",), everywhere=True),
    ]


def patch_when_imported(checkpoints: Checkpoints, apply: Callable[[list[Patch]], None]) -> None:
    """Take over the checkpoint functions of other libraries as soon as the script imports them.

    Args:
        checkpoints: of the session.
        apply: applies patches, unless the session has ended.
    """

    def save_file(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        def bind(tensors: Any, filename: Any, *rest: Any, **options: Any) -> None:
            checkpoints.save(
                "safetensors.save_file",
                filename,
                tensors,
                lambda path: wrapped(wholly(tensors), path, *rest, **options),
                lambda: wrapped(wholly(tensors), filename, *rest, **options),
                by_name=True,
            )

        bind(*args, **kwargs)

    def save(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        def bind(obj: Any, f: Any, *rest: Any, **options: Any) -> None:
            if not isinstance(f, (str, os.PathLike)):
                wrapped(obj, f, *rest, **options)
                return
            checkpoints.save(
                "accelerate.save",
                f,
                obj,
                lambda path: wrapped(wholly(obj), path, *rest, **options),
                lambda: wrapped(wholly(obj), f, *rest, **options),
                by_name=True,
            )

        bind(*args, **kwargs)

    def save_folder(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def bind(state_dict: dict[str, Any], *, checkpoint_id: Any = None, **options: Any) -> Any:
            # What has a state_dict is asked for it, as torch.distributed.checkpoint.save would, and by every rank.
            held = {name: v.state_dict() if isinstance(v, Stateful) else v for name, v in state_dict.items()}
            held = wholly(held)
            path = getattr(options.get("storage_writer"), "path", ".") if checkpoint_id is None else checkpoint_id
            return checkpoints.save_folder(
                "torch.distributed.checkpoint.save", path, lambda: wrapped(held, checkpoint_id=checkpoint_id, **options)
            )

        from torch.distributed.checkpoint.stateful import Stateful  # noqa: PLC0415 — the script has imported it

        return bind(*args, **kwargs)

    folder_rows = [Patch(_DCP, "save", save_folder, "rank 0 writes; all ranks wait", everywhere=True)]
    torch_rows = [Patch("safetensors.torch", "save_file", save_file, _ONCE)]
    numpy_rows = [Patch("safetensors.numpy", "save_file", save_file, _ONCE)]
    accelerate_rows = [Patch("accelerate.utils.other", "save", save, _ONCE, also=("accelerate.utils:save",))]
    wrapt.register_post_import_hook(lambda module: apply(folder_rows), "torch.distributed.checkpoint")
    wrapt.register_post_import_hook(lambda module: apply(torch_rows), "safetensors.torch")
    wrapt.register_post_import_hook(lambda module: apply(numpy_rows), "safetensors.numpy")
    wrapt.register_post_import_hook(lambda module: apply(accelerate_rows), "accelerate.utils.other")


def wholly(data: Any) -> Any:
    """Give batches as the tensors that one process would have; every rank has gathered them already."""
    return map_leaves(lambda leaf: whole_of(leaf) if isinstance(leaf, BatchTensor) else leaf, data)
