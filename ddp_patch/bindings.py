"""Names that are bound to what is patched: ``from x import y``, in any module that is loaded, and a few tables."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from .errors import PatchError
from .patch import Patch, locate, stored
from .planted import Planted, Span, behind

# Python's own views of the system, which its machinery works through.
_INNER = ("_io", "posix", "nt", "tempfile", "importlib._bootstrap_external")
# Not in a module itself: what numpy.savetxt and loadtxt open with (NumPy 1.x and 2.x), and pathlib works with (3.10).
_TABLES = (("numpy.lib._datasource", "_file_openers._file_openers"), ("pathlib", "_NormalAccessor"))


class Bindings:
    """The names in loaded modules that are bound to the functions of rows, looked for once."""

    def __init__(self, patches: Iterable[Patch]) -> None:
        """Look for nothing yet."""
        self._patches = [patch for patch in patches if "." not in patch.target]
        self._names: dict[int, list[tuple[Any, Any]]] = {}

    def of(self, value: Any, exclude: tuple[Any, str]) -> list[tuple[Any, Any]]:
        """Names that are bound to an object, besides the excluded one."""
        if id(value) not in self._names:
            self._look_for({id(value), *self._originals()})
        return [place for place in self._names[id(value)] if place != exclude and behind(stored(*place)) is value]

    def _originals(self) -> Iterator[int]:
        for patch in self._patches:
            if patch.module in sys.modules:
                with contextlib.suppress(PatchError):  # said where it is planted
                    yield id(stored(*locate(patch.module, patch.target)))

    def _look_for(self, wanted: set[int]) -> None:
        self._names = {value: [] for value in wanted}
        for owner in _owners():
            names = dict(owner if isinstance(owner, dict) else vars(owner))
            # A hundred thousand names: most owners are passed over without a step of Python for each of theirs.
            may_be_behind = Span.any_is_over and Planted in set(map(type, names.values()))
            if not may_be_behind and wanted.isdisjoint(map(id, names.values())):
                continue
            for name, bound in names.items():
                value = id(behind(bound))
                if value in wanted:
                    self._names[value].append((owner, name))


def _owners() -> Iterator[Any]:
    for module in {id(module): module for module in sys.modules.values()}.values():  # some go by two names
        if type(module) is ModuleType and module.__name__ not in _INNER:  # others compute their attributes
            yield module
    for name, path in _TABLES:
        owner: Any = sys.modules.get(name)
        for part in path.split("."):
            owner = getattr(owner, part, None)
        if owner is not None:
            yield owner
