"""open, and os.stat behind os.path.exists and its like: one file per job, the same for whoever reads it."""

from __future__ import annotations

from typing import Any

from ..effects.files import Files
from ..patcher import Patch

_PARAMETERS = ("buffering", "encoding", "errors", "newline", "closefd", "opener")


def patches(files: Files) -> list[Patch]:
    """Rows for ``open`` and ``os.stat``."""

    def open_file(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def bind(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
            given = {**dict(zip(_PARAMETERS, rest, strict=False)), **options}
            if not isinstance(mode, str) or len(rest) > len(_PARAMETERS):
                return wrapped(*args, **kwargs)  # which says what is wrong
            return files.open(wrapped, file, mode, given)

        return bind(*args, **kwargs)

    def stat(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def bind(path: Any, *rest: Any, **options: Any) -> Any:
            return files.stat(wrapped, path, rest, options)

        return bind(*args, **kwargs)

    def translated(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return wrapped(*(files.leaders(arg) for arg in args[:1]), *args[1:], **kwargs)

    by_name = "by the name that rank 0 gave"
    return [
        *(Patch("os", name, translated, by_name) for name in ("listdir", "scandir", "chdir", "access")),
        Patch(
            "io",
            "open",
            open_file,
            "rank 0 writes; all see the finished file",
            also=("builtins:open",),
            everywhere=True,
        ),
        Patch("os", "stat", stat, "rank 0's view of a file that is being written"),
    ]
