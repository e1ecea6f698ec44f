"""Exceptions that other ranks raise as well."""

from __future__ import annotations

import pickle
from typing import Any


def portable(error: BaseException | None) -> Any:
    """Keep an exception that survives pickling as it is, rebuild one whose ``__init__`` wants more, or describe it."""
    for form in (error, _Rebuilt(error)):
        try:
            pickle.loads(pickle.dumps(form))
        except Exception:  # noqa: BLE001 — pickling runs foreign code
            continue
        return form
    return RuntimeError(f"{type(error).__name__} on another rank: {error}")


class _Rebuilt:
    """An exception that is made without its ``__init__`` where it is unpickled."""

    def __init__(self, error: BaseException | None) -> None:
        self._error = error

    def __reduce__(self) -> Any:
        return _rebuild, (type(self._error), getattr(self._error, "args", ()), vars(self._error))


def _rebuild(kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind)
    error.args = args
    vars(error).update(attributes)
    return error
