"""What goes to the ranks with a call, and what comes back."""

from __future__ import annotations

import io
import pickle
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import LaunchError, OrderError
from ..portable import portable
from . import steps, surroundings
from .picklers import Back, ElsewhereError, Going, number_above, numbered


def pack(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[bytes, list[Any]]:
    """Pickle a call by value.

    Returns:
        the call; what is this process's own when it comes back, in its order.

    Raises:
        LaunchError: naming what cannot be pickled.
        OrderError: naming what holds tensors of an accelerator.
    """
    file = io.BytesIO()
    pickler = Going(file)
    try:
        pickler.dump(_filters())
        pickler.dump((function, args, kwargs))
        tracked = list(pickler.tracked.values())
        pickler.dump((tracked, steps.marked(tracked)))
    except Exception as error:
        raise _refusal(function, args, kwargs, error) from error
    return file.getvalue(), tracked


def _filters() -> list[tuple[Any, ...]]:
    """Tell how warnings are filtered, as ``warnings.filterwarnings`` takes it."""
    found = warnings.filters
    return [(action, _pattern(text), kind, _pattern(module), line) for action, text, kind, module, line in found]


def _pattern(what: Any) -> str:
    # Python's own filter has a module's name in its place (CPython 3.10 to 3.14, _warnings.c).
    return rf"{re.escape(what)}\Z" if isinstance(what, str) else getattr(what, "pattern", "")


def unpack(call: bytes) -> tuple[Any, Any, Any, list[Any]]:
    """Give the function, its arguments, and what is the caller's own; what they name is found in ``__main__``.

    Warnings are filtered as they were there.
    """
    unpickler = pickle.Unpickler(io.BytesIO(call))  # one for all, which share objects
    for warning_filter in reversed(unpickler.load()):  # first: modules that are imported for the rest may warn
        warnings.filterwarnings(*warning_filter)
    function, args, kwargs = unpickler.load()
    tracked, marked = unpickler.load()
    steps.mark(tracked, marked)
    main = vars(sys.modules["__main__"])
    inner = function
    while hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    its = getattr(inner, "__globals__", {})
    if its.get("__name__") == "__main__":
        main.update({name: value for name, value in its.items() if not name.startswith("__")})
    for each in tracked:
        if isinstance(each, type) and each.__module__ == "__main__":  # which others look up by their names
            main.setdefault(each.__name__, each)
        if isinstance(each, dict):
            number_above(each)
    return function, args, kwargs, tracked


def going_back(tracked: Sequence[Any]) -> Back:
    """Give a pickler for what comes back, all of which may share objects."""
    return Back(numbered(tracked))


def pack_changes(back: Back, changed: Mapping[int, Any]) -> bytes:
    """Pickle what a function changed of what it got, by number, and the state of this process."""
    return back.packed((changed, surroundings.state()), to_host=True)


def unpickler(tracked: Sequence[Any], packed: bytes) -> pickle.Unpickler:
    """Give what comes back, one thing after the other; what is held is the caller's own."""
    found = pickle.Unpickler(io.BytesIO(packed))
    found.persistent_load = tracked.__getitem__  # type: ignore[method-assign]
    return found


class Raised(Exception):
    """What a rank raised, with its traceback as text."""


def pack_error(kind: type[BaseException], error: BaseException, where: Any, rank: int, tracked: Sequence[Any]) -> bytes:
    """Pickle an error with the traceback that its rank would show."""
    text = "".join(traceback.format_exception(kind, error, where))
    try:
        packed = going_back(tracked).packed(error)
        unpickler(tracked, packed).load()
    except Exception:  # noqa: BLE001 — pickling runs foreign code
        packed = going_back(tracked).packed(portable(error))
    return pickle.dumps((packed, f"\nIn rank {rank}:\n{text}"))


def pack_result(back: Back, function: Any, result: Any) -> tuple[bytes, LaunchError | None]:
    """Pickle what a function returned; or say why that cannot be handed over."""
    try:
        return back.packed(result), None
    except Exception as error:  # noqa: BLE001 — pickling runs foreign code
        why = str(error).partition("\n")[0] or type(error).__name__
        return b"", LaunchError(
            f"ddp_patch.launch({getattr(function, '__name__', function)}): what it returned, {type(result).__name__}, "
            f"cannot be handed to this process: {why}. What it changed of its arguments is there. Return tensors, "
            "numbers, or a state_dict."
        )


def unpack_error(tracked: Sequence[Any], packed: bytes) -> BaseException:
    """Give the error of a rank, with what that would have shown."""
    error, where = pickle.loads(packed)
    try:
        found: BaseException = unpickler(tracked, error).load()
    except Exception as missing:  # noqa: BLE001 — a class of a module that only the ranks have found
        found = LaunchError(f"a rank raised what this process cannot import ({missing}):\n{where}")
    found.__cause__ = Raised(where)
    return found


def _refusal(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception) -> Exception:
    name = getattr(function, "__name__", str(function))
    parts = {f"argument {index + 1}": value for index, value in enumerate(args)}
    parts |= {f"argument {key!r}": value for key, value in kwargs.items()}
    its = getattr(function, "__globals__", {})
    used = getattr(getattr(function, "__code__", None), "co_names", ())
    parts |= {f"{key!r}, which it uses": its[key] for key in used if key in its}
    culprit = next((part for part, value in parts.items() if not _packs(value)), "something in it")
    if isinstance(error, ElsewhereError):
        return OrderError(
            f"ddp_patch.launch({name}): {culprit} holds tensors on {error.args[0]} of this process, where the ranks "
            f"have a device each. Move the line that puts it there into {name}, or hand it over from the host (.cpu())."
        )
    why = str(error).partition("\n")[0] or type(error).__name__
    return LaunchError(
        f"ddp_patch.launch({name}): {culprit} cannot be handed to other processes: {why}. Make it inside of {name}."
    )


def _packs(value: Any) -> bool:
    try:
        Going(io.BytesIO()).dump(value)
    except Exception:  # noqa: BLE001 — pickling runs foreign code
        return False
    return True
