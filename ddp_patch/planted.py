"""What stands in the place of a patched function: it looks like the function, and is copied and pickled as it."""

from __future__ import annotations

import importlib
import os
import weakref
from typing import Any

import wrapt


class Span:
    """From a first patch until ``undo``: a name that was bound to a wrapper meanwhile reaches what was there before.

    It is over in children of the process as well. DataLoader workers inherit the wrappers, but are no ranks.
    """

    any_is_over = False  # so that there may be wrappers which are passed by

    def __init__(self) -> None:
        """Begin."""
        self.switch = [True]  # wrapt passes wrappers by whose switch is empty, without a call of Python
        _going_on.add(self)

    @property
    def is_over(self) -> bool:
        """Whether wrappers are passed by."""
        return not self.switch

    def end(self) -> None:
        """Have them passed by."""
        self.switch.clear()
        Span.any_is_over = True


def _end_all() -> None:
    for span in list(_going_on):
        span.end()


_going_on: weakref.WeakSet[Span] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_end_all)


class _Bound(wrapt.BoundFunctionWrapper):  # type: ignore[type-arg]  # of no use here
    """A method of a wrapper."""

    def __repr__(self) -> str:
        """Look like the method."""
        return repr(self.__wrapped__)


class Planted(wrapt.FunctionWrapper):  # type: ignore[type-arg]  # of no use here
    """A wrapper that is copied and pickled as functions are: by its name."""

    __bound_function_wrapper__ = _Bound
    # wrapt keeps attributes of this prefix on the wrapper. Annotated, they would hide the function's annotations.
    _self_place = ()  # type: tuple[str, ...]
    _self_span = Span()

    def __repr__(self) -> str:
        """Look like the function."""
        return repr(self.__wrapped__)

    def __copy__(self) -> Planted:
        """Functions are not copied."""
        return self

    def __deepcopy__(self, memo: Any) -> Planted:
        """Functions are not copied."""
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the name."""
        # A process without this package finds what was wrapped there, one with it finds the wrapper.
        module, *path = self._self_place
        owner: _Attribute = _Module(module)
        for name in path[:-1]:
            owner = _Attribute(owner, name)
        return getattr, (owner, path[-1])


class _Attribute:
    """An attribute of something, for pickling."""

    def __init__(self, owner: Any, name: str) -> None:
        self._owner = owner
        self._name = name

    def __reduce__(self) -> Any:
        return getattr, (self._owner, self._name)


class _Module(_Attribute):
    """A module, for pickling."""

    def __init__(self, name: str) -> None:
        super().__init__(None, name)

    def __reduce__(self) -> Any:
        return importlib.import_module, (self._name,)


def behind(bound: Any) -> Any:
    """What a wrapper that was undone had wrapped; anything else itself."""
    return bound.__wrapped__ if type(bound) is Planted and bound._self_span.is_over else bound
