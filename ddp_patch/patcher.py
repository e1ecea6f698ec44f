"""Declare, apply and undo patches. Knows nothing of torch.

A patch is a row: where the target lives and a wrapper, ``(session, wrapped, instance, args, kwargs)``, which is wrapt's
with what it works with before it. Rows are applied all or nothing; the undo log is written while applying and walked
backwards.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import wrapt

from .errors import PatchError

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Wrapper = Callable[..., Any]  # (session, wrapped, instance, args, kwargs)
_ABSENT = object()
# Python's own views of the system, which its machinery works through.
_INNER = ("_io", "posix", "nt", "tempfile", "importlib._bootstrap_external")


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


@dataclass(frozen=True)
class _Done:
    owner: Any
    attribute: str
    original: Any
    planted: Any
    gives_way: bool


@dataclass
class _Span:
    """From a first patch until ``undo``: a name that was bound to a wrapper meanwhile reaches what was there before."""

    is_over: bool = False


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
    _self_span = _Span()

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


class Patcher:
    """Apply rows in order and put back the very objects that were there."""

    def __init__(self, session: Any = None, enabled: Callable[[], bool] = lambda: True) -> None:
        """Start with nothing applied.

        Args:
            session: given to each wrapper as its first argument.
            enabled: wrappers are passed by while it gives False.
        """
        self._session = session
        self._enabled = enabled
        self._span = _Span()
        self._log: list[_Done] = []
        self._bound: _Bindings | None = None  # while rows are applied
        self.applied: list[Patch] = []

    def apply(self, patches: Iterable[Patch]) -> None:
        """Apply all rows, or none if one of them fails; those of libraries that are not imported yet, when they are.

        Raises:
            PatchError: when a target does not exist.
        """
        waiting: dict[str, list[Patch]] = {}
        for patch in patches:
            waiting.setdefault(patch.when_imported, []).append(patch)
        self._bound = _Bindings(patch for rows in waiting.values() for patch in rows)
        try:
            self._apply(waiting.pop("", []))
            for module, rows in waiting.items():  # at once where the module is there already
                wrapt.register_post_import_hook(functools.partial(self._imported, self._span, rows), module)
        finally:
            self._bound = None

    def _imported(self, span: _Span, rows: list[Patch], module: ModuleType) -> None:
        if not span.is_over:
            self._apply(rows)

    def _apply(self, rows: list[Patch]) -> None:
        mark, bound = len(self._log), self._bound or _Bindings(rows)
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
        self._span.is_over = True
        self._span = _Span()
        self._undo_down_to(0)

    def remove(self, patches: Sequence[Patch]) -> None:
        """Put back the targets of these rows alone."""
        targets = {
            (id(owner), attribute)
            for patch in patches
            for owner, attribute in (_locate(module, path) for module, path in _places(patch))
        }
        own = [done for done in self._log if (id(done.owner), done.attribute) in targets]
        self._log = [done for done in self._log if done not in own]
        self.applied = [patch for patch in self.applied if patch not in patches]
        _raise_if_foreign([_restore(done) for done in reversed(own)])

    def _plant(self, patch: Patch, bound: _Bindings) -> None:
        if patch.optional and not _exists(patch):
            return
        (owner, attribute), *others = [_locate(module, path) for module, path in _places(patch)]
        original = _held(owner, attribute)
        # Read along the MRO from __dict__, never getattr: binding would turn a staticmethod or an inherited
        # slot wrapper into something that cannot be put back.
        wrapped = _along_mro(owner, attribute) if original is _ABSENT else original
        if wrapped is _ABSENT:
            raise PatchError(f"{patch.name} does not exist in this version of {patch.module.split('.')[0]}.")
        if type(wrapped) is Planted and getattr(wrapped._self_wrapper, "func", None) is patch.wrapper:
            return  # another row's name for it
        span, enabled = self._span, self._enabled
        wrapper = functools.partial(patch.wrapper, self._session)
        planted = Planted(wrapped, wrapper, enabled=lambda: not span.is_over and enabled())
        planted._self_place = (patch.module, *patch.target.split("."))
        planted._self_span = span
        self._set(_Done(owner, attribute, original, planted, patch.gives_way))
        for other, other_attribute in others:
            if original is not _ABSENT and _held(other, other_attribute) is original:
                self._set(_Done(other, other_attribute, original, planted, patch.gives_way))
        if "." not in patch.target and _is_function(wrapped):
            for module, name in bound.of(wrapped, (owner, attribute)):
                self._set(_Done(module, name, wrapped, planted, patch.gives_way))

    def _set(self, done: _Done) -> None:
        setattr(done.owner, done.attribute, done.planted)
        self._log.append(done)

    def _undo_down_to(self, mark: int) -> None:
        foreign = []
        while len(self._log) > mark:
            foreign.append(_restore(self._log.pop()))
        _raise_if_foreign(foreign)


class _Bindings:
    """The names in loaded modules that are bound to what rows take over everywhere, looked for once."""

    def __init__(self, patches: Iterable[Patch]) -> None:
        self._patches = [patch for patch in patches if "." not in patch.target]
        self._names: dict[int, list[tuple[Any, str]]] = {}

    def of(self, value: Any, known: tuple[Any, str]) -> list[tuple[Any, str]]:
        """Names that are bound to an object, besides the known one."""
        if id(value) not in self._names:
            self._look_for({id(value), *self._originals()})
        return [place for place in self._names[id(value)] if place != known and _behind(_held(*place)) is value]

    def _originals(self) -> Iterator[int]:
        for patch in self._patches:
            if patch.module in sys.modules:
                with contextlib.suppress(PatchError):  # said where it is planted
                    yield id(_held(*_locate(patch.module, patch.target)))

    def _look_for(self, wanted: set[int]) -> None:
        self._names = {value: [] for value in wanted}
        for module in {id(module): module for module in sys.modules.values()}.values():  # some go by two names
            if type(module) is ModuleType and module.__name__ not in _INNER:  # others compute their attributes
                for name, bound in list(vars(module).items()):
                    value = id(bound.__wrapped__ if type(bound) is Planted and bound._self_span.is_over else bound)
                    if value in wanted:
                        self._names[value].append((module, name))


def _behind(bound: Any) -> Any:
    """What a wrapper that was undone had wrapped; anything else itself."""
    return bound.__wrapped__ if type(bound) is Planted and bound._self_span.is_over else bound


def _places(patch: Patch) -> list[tuple[str, str]]:
    further = [(module, path) for module, _, path in (name.partition(":") for name in patch.also)]
    return [(patch.module, patch.target), *further]


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)


def _exists(patch: Patch) -> bool:
    try:
        owner, attribute = _locate(patch.module, patch.target)
    except PatchError:
        return False
    return hasattr(owner, attribute)


def _locate(module: str, path: str) -> tuple[Any, str]:
    try:
        owner: Any = importlib.import_module(module)
    except ModuleNotFoundError:
        raise PatchError(f"{module}.{path} does not exist: there is no module {module}.") from None
    *parents, attribute = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent, _ABSENT)
        if owner is _ABSENT:
            raise PatchError(f"{module}.{path} does not exist in this version of {module.split('.')[0]}.")
    return owner, attribute


def _held(owner: Any, attribute: str) -> Any:
    return vars(owner).get(attribute, _ABSENT)


def _along_mro(owner: Any, attribute: str) -> Any:
    for base in getattr(owner, "__mro__", ())[1:]:
        if attribute in vars(base):
            return vars(base)[attribute]
    return _ABSENT


def _restore(done: _Done) -> str | None:
    held = _held(done.owner, done.attribute)
    # torch.fx takes methods away for a while, and puts back what it got from the class: a binding of the wrapper.
    if held is not done.planted and getattr(held, "_self_parent", None) is not done.planted:
        if done.gives_way or _calls(held, done.planted):
            return None  # as trackers and TorchDynamo do, for good; ours passes by from now on
        return f"{getattr(done.owner, '__name__', done.owner)}.{done.attribute}"
    if done.original is _ABSENT:
        delattr(done.owner, done.attribute)
    else:
        setattr(done.owner, done.attribute, done.original)
    return None


def _calls(outer: Any, inner: Any) -> bool:
    """Tell whether a function has another one at hand: in an attribute, in its closure, in the object it belongs to."""
    owner = getattr(outer, "__self__", None)
    held = [*getattr(outer, "__dict__", {}).values(), *getattr(owner, "__dict__", {}).values()]
    for cell in getattr(outer, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # a cell that is empty yet
            held.append(cell.cell_contents)
    return any(value is inner for value in held)


def _raise_if_foreign(names: Sequence[str | None]) -> None:
    foreign = [name for name in names if name]
    if foreign:
        raise PatchError(
            f"{', '.join(foreign)} was replaced by somebody else after ddp_patch.enable(), so it was left as it is. "
            "Undo in the opposite order: take the other patch away before ddp_patch.disable()."
        )
