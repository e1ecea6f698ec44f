"""torch.save: once per job, atomically, finished on every rank when it returns."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..batch.forms import whole_of
from ..batch.tensor import BatchTensor
from ..batch.world import World
from ..patcher import Patch
from ..structure import leaves


class _Nowhere:
    """A file object that takes everything and keeps nothing."""

    def write(self, data: Any) -> int:
        """Pretend to write."""
        return len(data)

    def flush(self) -> None:
        """Nothing to flush."""


def patches(world: World) -> list[Patch]:
    """Rows for ``torch.save``."""

    def save(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        def bind(obj: Any, f: Any, *rest: Any, **options: Any) -> None:
            path = _path_of(f)
            if path is None:  # BytesIO and the like are values of the script: every rank fills its own
                wrapped(obj, f, *rest, **options)
                return
            for _, leaf in leaves(obj):
                if isinstance(leaf, BatchTensor):
                    whole_of(leaf)  # gathered before anything can fail on one rank alone
            if hasattr(f, "write"):
                world.together(f.flush)  # every rank has opened, and so truncated, the file by now
            if world.rank != 0:
                # Pickling materialises batches, which all ranks have to do together.
                world.together(lambda: wrapped(obj, _Nowhere(), *rest, **options))
            elif hasattr(f, "write"):
                world.together(lambda: wrapped(obj, f, *rest, **options))
            else:
                world.together(
                    lambda: write_atomically(
                        path,
                        lambda stream: wrapped(obj, stream, *rest, **options),
                        lambda: wrapped(obj, f, *rest, **options),
                    )
                )

        bind(*args, **kwargs)

    return [
        Patch("torch.serialization", "save", save, "rank 0 writes, atomically; all ranks wait", also=("torch:save",))
    ]


def _path_of(f: Any) -> Path | None:
    """Path behind ``f``, if it stands for a file on disk."""
    if isinstance(f, (str, os.PathLike)):
        return Path(f)
    name = getattr(f, "name", None)
    return Path(name) if isinstance(name, str) and hasattr(f, "write") else None


def write_atomically(path: Path, write: Callable[[Any], None], write_directly: Callable[[], None]) -> None:
    """Write beside the target, then rename: a reader and a crash see the old file or the new one, never half of it.

    Args:
        path: the target.
        write: writes to an open file.
        write_directly: what torch would do, for a target that cannot be renamed to: a pipe, a link, a folder that
            takes no new files, or a path that torch refuses in its own words.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()) or not path.parent.is_dir():
        write_directly()
        return
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError:
        write_directly()
        return
    mode = path.stat().st_mode & 0o7777 if path.exists() else 0o666 & ~_umask()
    try:
        with os.fdopen(descriptor, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
