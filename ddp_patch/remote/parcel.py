"""What goes to the ranks with a call, and what comes back."""

from __future__ import annotations

import io
import pickle
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle
import torch
from torch.nn.parameter import Parameter

from ..errors import LaunchError, OrderError
from ..portable import portable
from . import surroundings

CHANGING = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.Generator)
_HOST = ("cpu", "meta")


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Notes the classes that go by value, which others look up by their names, and what the function may change."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.classes: list[type] = []
        self.held: dict[int, Any] = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and obj.__module__ == "__main__":
            self.classes.append(obj)
        return super().reducer_override(obj)

    def persistent_id(self, obj: Any) -> None:
        if isinstance(obj, torch.Tensor) and obj.device.type not in _HOST:
            raise _ElsewhereError(obj.device)
        if isinstance(obj, CHANGING):
            self.held[id(obj)] = obj


class _ElsewhereError(Exception):
    pass


def pack(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[bytes, list[Any]]:
    """Pickle a call by value.

    Returns:
        the call; what the function may change of it, in its order.

    Raises:
        LaunchError: naming what cannot be pickled.
        OrderError: naming what holds tensors of an accelerator.
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump(_filters())
        pickler.dump((function, args, kwargs))
        held = list(pickler.held.values())
        pickler.dump((pickler.classes, held))
    except Exception as error:
        raise _refusal(function, args, kwargs, error) from error
    return file.getvalue(), held


def _filters() -> list[tuple[Any, ...]]:
    found = warnings.filters
    return [(action, kind, line) for action, text, kind, module, line in found if not (text or module)]


def unpack(call: bytes) -> tuple[Any, Any, Any, list[Any]]:
    """Give the function, its arguments, and what it may change of them; what they name is found in ``__main__``.

    Warnings are filtered as they were there.
    """
    unpickler = pickle.Unpickler(io.BytesIO(call))  # one for all, which share objects
    for action, kind, line in reversed(unpickler.load()):  # first: modules that are imported for the rest may warn
        warnings.simplefilter(action, kind, line)
    function, args, kwargs = unpickler.load()
    classes, held = unpickler.load()
    main = vars(sys.modules["__main__"])
    inner = function
    while hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    its = getattr(inner, "__globals__", {})
    if its.get("__name__") == "__main__":
        main.update({name: value for name, value in its.items() if not name.startswith("__")})
    for kind in classes:
        main.setdefault(kind.__name__, kind)
    return function, args, kwargs, held


def dumps(value: Any) -> bytes:
    """Pickle what comes back; classes that came with the call are the caller's own there."""
    return cloudpickle.dumps(value)  # type: ignore[no-any-return]


class _Back(cloudpickle.Pickler):  # type: ignore[misc]
    """Names what came with the call by its number, and takes other tensors to the host."""

    def __init__(self, file: Any, held: list[Any]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._numbers = {id(each): number for number, each in enumerate(held)}

    def persistent_id(self, obj: Any) -> int | None:
        return self._numbers.get(id(obj))

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) in (torch.Tensor, Parameter) and obj.device.type not in _HOST:
            return _on_host, (obj.detach().cpu(), type(obj) is Parameter, obj.requires_grad)
        return super().reducer_override(obj)


def _on_host(value: torch.Tensor, is_parameter: bool, requires_grad: bool) -> torch.Tensor:
    return Parameter(value, requires_grad) if is_parameter else value.requires_grad_(requires_grad)


def pack_changes(held: list[Any], changed: Mapping[int, Any]) -> bytes:
    """Pickle what a function changed of what it got.

    Args:
        held: what it may have changed.
        changed: of it, by number; and the state of this process.
    """
    file = io.BytesIO()
    _Back(file, held).dump((changed, surroundings.state()))
    return file.getvalue()


def unpack_changes(held: list[Any], packed: bytes) -> tuple[dict[int, Any], dict[str, Any]]:
    """Give what was changed, and the state; what is held is the caller's own."""
    unpickler = pickle.Unpickler(io.BytesIO(packed))
    unpickler.persistent_load = held.__getitem__  # type: ignore[method-assign]
    found: tuple[dict[int, Any], dict[str, Any]] = unpickler.load()
    return found


class Raised(Exception):
    """What a rank raised, with its traceback as text."""


def pack_error(kind: type[BaseException], error: BaseException, where: Any, rank: int) -> bytes:
    """Pickle an error with the traceback that its rank would show."""
    text = "".join(traceback.format_exception(kind, error, where))
    return pickle.dumps((cloudpickle.dumps(_portable(error)), f"\nIn rank {rank}:\n{text}"))


def pack_result(function: Any, result: Any) -> tuple[bytes, LaunchError | None]:
    """Pickle what a function returned; or say why that cannot be handed over."""
    try:
        return dumps(result), None
    except Exception as error:  # noqa: BLE001 — pickling runs foreign code
        why = str(error).partition("\n")[0] or type(error).__name__
        return b"", LaunchError(
            f"ddp_patch.launch({getattr(function, '__name__', function)}): what it returned, {type(result).__name__}, "
            f"cannot be handed to this process: {why}. What it changed of its arguments is there. Return tensors, "
            "numbers, or a state_dict."
        )


def unpack_error(packed: bytes) -> BaseException:
    """Give the error of a rank, with what that would have shown."""
    error, where = pickle.loads(packed)
    try:
        found: BaseException = pickle.loads(error)
    except Exception as missing:  # noqa: BLE001 — a class of a module that only the ranks have found
        found = LaunchError(f"a rank raised what this process cannot import ({missing}):\n{where}")
    found.__cause__ = Raised(where)
    return found


def _portable(error: BaseException) -> Any:
    try:
        pickle.loads(cloudpickle.dumps(error))
    except Exception:  # noqa: BLE001 — pickling runs foreign code
        return portable(error)
    return error


def _refusal(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception) -> Exception:
    name = getattr(function, "__name__", str(function))
    parts = {f"argument {index + 1}": value for index, value in enumerate(args)}
    parts |= {f"argument {key!r}": value for key, value in kwargs.items()}
    its = getattr(function, "__globals__", {})
    used = getattr(getattr(function, "__code__", None), "co_names", ())
    parts |= {f"{key!r}, which it uses": its[key] for key in used if key in its}
    culprit = next((part for part, value in parts.items() if not _packs(value)), "something in it")
    if isinstance(error, _ElsewhereError):
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
        _Pickler(io.BytesIO()).dump(value)
    except Exception:  # noqa: BLE001 — pickling runs foreign code
        return False
    return True
