"""Exceptions that other ranks raise as well."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any


def portable(error: BaseException | None) -> Any:
    """Keep an exception that survives pickling as it is; rebuild one that does not, as far as it does; or describe it.

    One whose ``__init__`` wants more than its arguments, as many of libraries do, is rebuilt whole; one that holds a
    connection, as ``urllib``'s ``HTTPError`` does, has None in its place.
    """
    for form in (error, _Rebuilt(error), _Rebuilt(error, _or_none)):
        try:
            pickle.loads(pickle.dumps(form))
        except Exception:  # noqa: BLE001 — pickling runs foreign code
            continue
        return form
    return RuntimeError(f"{type(error).__name__} on another rank: {error}")


class _Rebuilt:
    """An exception that is made without its ``__init__`` where it is unpickled."""

    def __init__(self, error: BaseException | None, part: Callable[[Any], Any] = lambda value: value) -> None:
        self._error = error
        self._part = part

    def __reduce__(self) -> Any:
        args = tuple(map(self._part, getattr(self._error, "args", ())))
        return _rebuild, (type(self._error), args, {name: self._part(it) for name, it in vars(self._error).items()})


def _or_none(value: Any) -> Any:
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:  # noqa: BLE001 — pickling runs foreign code
        return None
    return value


def _rebuild(kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind)
    error.args = args
    vars(error).update(attributes)
    return error
