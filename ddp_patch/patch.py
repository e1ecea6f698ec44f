"""A patch is a row: where the target lives, a wrapper, and what becomes of it in a line."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .errors import PatchError

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Wrapper = Callable[..., Any]  # (session, wrapped, instance, args, kwargs)
ABSENT = object()


@dataclass(frozen=True)
class Patch:
    """One patched name.

    A function is taken over wherever a loaded module has bound it (``from x import y``), classes and methods in their
    place.

    Attributes:
        module: importable module that holds the target.
        target: dotted path of the attribute inside the module, such as ``DataParallel.forward``.
        wrapper: called as ``wrapper(session, wrapped, instance, args, kwargs)``.
        also: further ``module:path`` names bound to the very same object.
        effect: one line for the report and the docs.
        gives_way: whoever replaces the name meanwhile keeps it, without a word: trackers do so with ``sys.exit``.
        when_imported: the module whose import it waits for; an empty string for what is applied at once.
        optional: some versions of the library lack it.
    """

    module: str
    target: str
    wrapper: Wrapper
    effect: str
    also: tuple[str, ...] = ()
    gives_way: bool = False
    when_imported: str = ""
    optional: bool = False

    @property
    def name(self) -> str:
        """Full dotted name, as a script's author would write it."""
        return f"{self.module}.{self.target}"


def places(patch: Patch) -> list[tuple[str, str]]:
    """The target and the further names, each as module and path."""
    further = [(module, path) for module, _, path in (name.partition(":") for name in patch.also)]
    return [(patch.module, patch.target), *further]


def is_function(value: Any) -> bool:
    """Tell functions from classes."""
    return callable(value) and not isinstance(value, type)


def exists(patch: Patch) -> bool:
    """Tell whether there is such a target."""
    try:
        owner, attribute = locate(patch.module, patch.target)
    except PatchError:
        return False
    return hasattr(owner, attribute)


def locate(module: str, path: str) -> tuple[Any, str]:
    """Find who holds a target: the owner and the attribute's name.

    Raises:
        PatchError: when there is no such module or class.
    """
    try:
        owner: Any = importlib.import_module(module)
    except ModuleNotFoundError:
        raise PatchError(f"{module}.{path} does not exist: there is no module {module}.") from None
    *parents, attribute = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent, ABSENT)
        if owner is ABSENT:
            raise PatchError(f"{module}.{path} does not exist in this version of {module.split('.')[0]}.")
    return owner, attribute


def stored(owner: Any, attribute: Any) -> Any:
    """What an owner itself holds; ABSENT for nothing."""
    return owner.get(attribute, ABSENT) if isinstance(owner, dict) else vars(owner).get(attribute, ABSENT)


def put(owner: Any, attribute: Any, value: Any) -> None:
    """Have an owner hold something."""
    if isinstance(owner, dict):
        owner[attribute] = value
    else:
        setattr(owner, attribute, value)


def along_mro(owner: Any, attribute: str) -> Any:
    """What a class inherits; ABSENT for nothing."""
    for base in getattr(owner, "__mro__", ())[1:]:
        if attribute in vars(base):
            return vars(base)[attribute]
    return ABSENT
