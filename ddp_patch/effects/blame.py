"""A warning names the line that it names in one process: frames of ours, and of DDP, are passed over.

Whoever warns from C (torch's C++ code, numpy, Python itself) blames the innermost Python frame, and only then looks for
a filter. So the filters that are looked up from a frame of ours hold one entry, which warns anew for the right line.
Nothing is done before there is a warning.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch
from torch.nn.modules import module
from torch.nn.parallel import distributed

_OURS = str(Path(__file__).parents[1])
_DDP, _MODULE = distributed.__file__, module.__file__
_BEGIN = str(Path(_OURS) / "__main__.py")  # ``python -m ddp_patch script.py``: the script's frames are above
_AGAIN = torch.overrides.handle_torch_function.__code__
# One process has no buckets; for weights [1, n] torch 2.13 says this whatever one does, from here.
_BACKWARD = torch.autograd.graph.__name__
_OF_BUCKETS = "Grad strides do not match bucket view strides"
_DROPPED: Any = ("ignore", None, Warning, None, 0)  # told from the script's own by its identity


class Blame:
    """Where warnings of a session point, until ``stop``."""

    def __init__(self, is_muted: Callable[[], bool]) -> None:
        """Change nothing yet.

        Args:
            is_muted: a trial runs, of which nothing is said.
        """
        self._is_muted = is_muted
        self._kind = type(warnings)

    def begin(self) -> None:
        """Look at who asks for the filters."""
        # C asks the module for its attribute before every warning that was not shown yet (CPython 3.10 to 3.14).
        warnings.__class__ = _watched(self._kind, self._seen_from)

    def stop(self) -> None:
        """Give the module its class back."""
        warnings.__class__ = self._kind

    def warn(self, wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Warn for the frame that is ``stacklevel`` frames out in one process."""

        def bind(message: Any, category: Any = None, stacklevel: int = 1, *rest: Any, **options: Any) -> None:
            if not self._is_muted():
                prefixes = options.get("skip_file_prefixes", ())
                level = _deeper(sys._getframe(), max(stacklevel, 2 if prefixes else 1), tuple(prefixes))
                wrapped(message, category, level, *rest, **options)

        bind(*args, **kwargs)

    def _seen_from(self, frame: FrameType, filters: list[Any]) -> list[Any]:
        """Give the filters that hold for a warning of this frame."""
        # A copy that catch_warnings takes, here or in a module of its own, has the filters that it gives back.
        if frame.f_code in _SEEING_ALL or frame.f_globals is vars(warnings):
            return filters
        if self._is_muted():
            return [_DROPPED, *filters]
        if frame.f_code.co_filename.startswith(_OURS):
            again = _Again(frame)
            return [("ignore", again, again, None, 0)]
        if frame.f_globals.get("__name__") == _BACKWARD:
            return [("ignore", _Buckets, Warning, None, 0), *filters]
        return filters


class _Buckets:
    """Matches what torch says of DDP's buckets."""

    @staticmethod
    def match(text: str) -> bool:
        return text.startswith(_OF_BUCKETS)


class _Again:
    """A filter's message and category: once it knows both, it warns for the line that one process has."""

    def __init__(self, frame: FrameType) -> None:
        # Not the frame itself, whose variables would live as long as the interpreter remembers these filters.
        blamed = next(_in_one_process(frame), None)
        self._names: dict[str, Any] = vars(sys) if blamed is None else blamed.f_globals
        self._line = ("sys", 1) if blamed is None else (blamed.f_code.co_filename, blamed.f_lineno)
        self._text = ""

    def match(self, text: str) -> bool:
        self._text = text
        return True

    def __subclasscheck__(self, category: type[Warning]) -> bool:
        names, self._names = self._names, {}
        name = names.get("__name__")
        registry = names.setdefault("__warningregistry__", {})
        warnings.warn_explicit(
            self._text, category, *self._line, name if isinstance(name, str) else "<string>", registry
        )
        return True


_SEEING_ALL = {
    _Again.__subclasscheck__.__code__,
    *(code for code in Blame.warn.__code__.co_consts if hasattr(code, "co_code")),
}


def _watched(kind: type[ModuleType], seen_from: Callable[[FrameType, list[Any]], list[Any]]) -> type[ModuleType]:
    class Watched(kind):  # type: ignore[misc, valid-type]  # a class is what it is
        @property
        def filters(self) -> list[Any]:
            return seen_from(sys._getframe(1), self.__dict__["filters"])

        @filters.setter
        def filters(self, value: list[Any]) -> None:
            is_own = any(entry is _DROPPED for entry in value)
            self.__dict__["filters"] = [entry for entry in value if entry is not _DROPPED] if is_own else value

    return Watched


def _in_one_process(frame: FrameType | None) -> Iterator[FrameType]:
    """Walk outwards over the frames that one process has, too."""
    while frame is not None and frame.f_code.co_filename != _BEGIN:
        if not frame.f_code.co_filename.startswith(_OURS):
            yield frame
            frame = frame.f_back
            continue
        frame = frame.f_back
        if frame is not None and frame.f_code is _AGAIN:
            # A function of torch's that called itself again, with rows for batches.
            frame = frame.f_back and frame.f_back.f_back
        frame = _past_ddp(frame)


def _past_ddp(frame: FrameType | None) -> FrameType | None:
    """Pass over a DDP that is called by this package and calls it again."""
    at, past, is_ddp = frame, frame, False
    while at is not None:
        name = at.f_code.co_filename
        if name.startswith(_OURS):
            past, is_ddp = (at, False) if is_ddp else (past, False)
        elif name not in (_MODULE, _DDP):
            break
        is_ddp = is_ddp or name == _DDP
        at = at.f_back
    return past


def _deeper(frame: FrameType, stacklevel: int, prefixes: tuple[str, ...]) -> int:
    """Give the level, counted from a frame as ``warnings.warn`` counts, of the frame that one process has there."""
    wanted = stacklevel
    for blamed in _in_one_process(frame):
        wanted -= not _is_passed_over(blamed, prefixes, wanted == stacklevel)
        if wanted == 0:
            break
    else:
        return sys.maxsize  # beyond the outermost frame
    level, at = 1, frame
    while at is not blamed and at.f_back is not None:
        at = at.f_back
        level += not _is_passed_over(at, prefixes, False)
    return level


def _is_passed_over(frame: FrameType, prefixes: tuple[str, ...], is_first: bool) -> bool:
    """Tell whether Python does not count a frame: those of its import machinery, and those the caller excepts."""
    name = frame.f_code.co_filename
    return not is_first and (
        ("importlib" in name and "_bootstrap" in name) or (bool(prefixes) and name.startswith(prefixes))
    )
