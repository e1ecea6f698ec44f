"""Apply and undo patches. Knows nothing of torch.

Wrappers, ``(session, wrapped, instance, args, kwargs)``, are wrapt's with what they work with before it. Rows are
applied all or nothing; the undo log is written while applying and walked backwards.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import wrapt

from .bindings import Bindings
from .errors import PatchError
from .installed import is_installed
from .patch import ABSENT, Patch, along_mro, exists, is_function, locate, places, put, stored
from .planted import Planted, Span


@dataclass(frozen=True)
class _Done:
    owner: Any
    attribute: Any  # a key, where the owner is a dict
    original: Any
    planted: Any
    gives_way: bool


class Patcher:
    """Apply rows in order and put back the very objects that were there."""

    def __init__(self, session: Any = None) -> None:
        """Start with nothing applied.

        Args:
            session: given to each wrapper as its first argument.
        """
        self._session = session
        self._span = Span()
        self._log: list[_Done] = []
        self._bound: Bindings | None = None  # while rows are applied
        self.applied: list[Patch] = []

    def apply(self, patches: Iterable[Patch]) -> None:
        """Apply all rows, or none if one of them fails; those of libraries that are not imported yet, when they are.

        Raises:
            PatchError: when a target does not exist.
        """
        waiting: dict[str, list[Patch]] = {}
        for patch in patches:
            waiting.setdefault(patch.when_imported, []).append(patch)
        self._bound = Bindings(patch for rows in waiting.values() for patch in rows)
        try:
            self._apply(waiting.pop("", []))
            for module, rows in waiting.items():  # at once where the module is there already
                wrapt.register_post_import_hook(functools.partial(self._imported, self._span, rows), module)
        finally:
            self._bound = None

    def _imported(self, span: Span, rows: list[Patch], module: ModuleType) -> None:
        if not span.is_over:
            self._apply(list(filter(exists, rows)) if _stands_for_a_library(module) else rows)

    def _apply(self, rows: list[Patch]) -> None:
        rows = [patch for patch in rows if not patch.optional or exists(patch)]
        mark, bound = len(self._log), self._bound or Bindings(rows)
        try:
            for patch in rows:
                self._plant(patch, bound)
        except BaseException:
            self._undo_down_to(mark)
            raise
        self.applied.extend(rows)

    def undo(self) -> None:
        """Put everything back, last patch first.

        Raises:
            PatchError: when somebody else replaced a patched name meanwhile; the others are still put back.
        """
        self.applied.clear()
        self._span.end()
        self._span = Span()
        self._undo_down_to(0)

    def remove(self, patches: Sequence[Patch]) -> None:
        """Put back the targets of these rows alone."""
        targets = {
            (id(owner), attribute)
            for patch in patches
            for owner, attribute in (locate(module, path) for module, path in places(patch))
        }
        removed = [done for done in self._log if (id(done.owner), done.attribute) in targets]
        self._log = [done for done in self._log if done not in removed]
        self.applied = [patch for patch in self.applied if patch not in patches]
        _raise_if_foreign([_restore(done) for done in reversed(removed)])

    def _plant(self, patch: Patch, bound: Bindings) -> None:
        (owner, attribute), *others = [locate(module, path) for module, path in places(patch)]
        original = stored(owner, attribute)
        # Read along the MRO from __dict__, never getattr: binding would turn a staticmethod or an inherited
        # slot wrapper into something that cannot be put back.
        wrapped = along_mro(owner, attribute) if original is ABSENT else original
        if wrapped is ABSENT:
            raise PatchError(f"{patch.name} does not exist in this version of {patch.module.split('.')[0]}.")
        span = self._span
        if (
            type(wrapped) is Planted
            and wrapped._self_span is span
            and getattr(wrapped._self_wrapper, "func", None) is patch.wrapper
        ):
            return  # another row's name for it
        wrapper = functools.partial(patch.wrapper, self._session)
        planted = Planted(wrapped, wrapper, enabled=span.switch)  # type: ignore[arg-type]  # anything that is true or false
        planted._self_place = (patch.module, *patch.target.split("."))
        planted._self_span = span
        self._set(_Done(owner, attribute, original, planted, patch.gives_way))
        for other, other_attribute in others:
            if original is not ABSENT and stored(other, other_attribute) is original:
                self._set(_Done(other, other_attribute, original, planted, patch.gives_way))
        if "." not in patch.target and is_function(wrapped):
            for module, name in bound.of(wrapped, (owner, attribute)):
                self._set(_Done(module, name, wrapped, planted, gives_way=True))  # ``seed = 42`` is the script's

    def _set(self, done: _Done) -> None:
        put(done.owner, done.attribute, done.planted)
        self._log.append(done)

    def _undo_down_to(self, mark: int) -> None:
        foreign = []
        while len(self._log) > mark:
            foreign.append(_restore(self._log.pop()))
        _raise_if_foreign(foreign)


def _stands_for_a_library(module: ModuleType) -> bool:
    """Tell whether a module is the script's own, which has some of a library's names, as where that is missing."""
    path = getattr(module, "__file__", None) or ""
    return module.__name__.partition(".")[0] not in sys.stdlib_module_names and not is_installed(path)


def _restore(done: _Done) -> str | None:
    found = stored(done.owner, done.attribute)
    # torch.fx takes methods away for a while, and puts back what it got from the class: a binding of the wrapper.
    if not _is(found, done.planted):
        if done.gives_way or _calls(found, done.planted):
            return None  # as trackers and TorchDynamo do, for good; ours passes by from now on
        return f"{getattr(done.owner, '__name__', done.owner)}.{done.attribute}"
    if done.original is ABSENT:
        delattr(done.owner, done.attribute)
    else:
        put(done.owner, done.attribute, done.original)
    return None


def _is(found: Any, planted: Any) -> bool:
    # By its type: isinstance() asks proxies of the script's, which may stand for nothing yet.
    return found is planted or (issubclass(type(found), wrapt.BoundFunctionWrapper) and found._self_parent is planted)


def _calls(outer: Any, inner: Any) -> bool:
    """Tell whether a function has another one at hand: by a name, in an attribute, in the object it belongs to."""
    owner = getattr(outer, "__self__", None)
    found = [*getattr(outer, "__dict__", {}).values(), *getattr(owner, "__dict__", {}).values()]
    for cell in getattr(outer, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # a cell that is empty yet
            found.append(cell.cell_contents)
    if isinstance(outer, FunctionType):
        found += [outer.__globals__.get(name) for name in outer.__code__.co_names]
    return any(_is(value, inner) for value in found)


def _raise_if_foreign(names: Sequence[str | None]) -> None:
    foreign = [name for name in names if name]
    if foreign:
        raise PatchError(
            f"{', '.join(foreign)} was replaced by somebody else after ddp_patch.enable(), so it was left as it is. "
            "Undo in the opposite order: take the other patch away before ddp_patch.disable()."
        )
