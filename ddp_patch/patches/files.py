"""open, and os.stat behind os.path.exists and its like: one file per job, the same for whoever reads it."""

from __future__ import annotations

from typing import Any

from ..patch import Args, Kwargs, Patch, Wrapper
from ..session import Session

_PARAMETERS = ("buffering", "encoding", "errors", "newline", "closefd", "opener")


def _open_file(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    def bind(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        arguments = {**dict(zip(_PARAMETERS, rest, strict=False)), **options}
        if not isinstance(mode, str) or len(rest) > len(_PARAMETERS):
            return wrapped(*args, **kwargs)  # which says what is wrong
        if session.console.standard_input.opens(file, mode):
            return session.console.standard_input.open(wrapped, file, mode, arguments)
        return session.files.open(wrapped, file, mode, arguments)

    return bind(*args, **kwargs)


def _looking(what: str) -> Wrapper:
    def look(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        def bind(path: Any = ".", *rest: Any, **options: Any) -> Any:
            return session.looks.call(what, wrapped, path, rest, options)

        return bind(*args, **kwargs)

    return look


_BY_NAME = "where a rank named a file otherwise than rank 0 (by the clock), or its host does not see it, rank 0's"
_VIEW = "behind `os.path.exists` and its like: rank 0's view of a file that is being written, or that it alone sees"
_ONE_FILE = (
    "rank 0's file is real, the others write to nowhere; opening, flushing and closing succeed or fail alike; "
    "who reads sees what rank 0 has written by then"
)

PATCHES = (
    *(
        Patch("os", name, _looking(f"os.{name}"), _BY_NAME)
        for name in ("listdir", "scandir", "chdir", "access", "readlink")
    ),
    Patch("io", "open", _open_file, _ONE_FILE, also=("builtins:open",)),
    *(Patch("os", name, _looking(f"os.{name}"), _VIEW) for name in ("stat", "lstat")),
)
